# build_info.h: version, commit and compiler, for reports. Looked at on every build, written only
# when it changed.

set(build_info_dir ${PROJECT_BINARY_DIR}/generated)
set(build_info_script ${PROJECT_SOURCE_DIR}/cmake/WriteBuildInfo.cmake)
set(build_info_command
    ${CMAKE_COMMAND} -D source=${PROJECT_SOURCE_DIR} -D version=${PROJECT_VERSION}
    -D "compiler=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    -D "build_type=${CMAKE_BUILD_TYPE}" -D output=${build_info_dir}/build_info.h
    -P ${build_info_script})
execute_process(COMMAND ${build_info_command} COMMAND_ERROR_IS_FATAL ANY)

add_custom_target(tilewise_write_build_info COMMAND ${build_info_command}
                  BYPRODUCTS ${build_info_dir}/build_info.h COMMENT "Looking up the commit" VERBATIM)
add_library(tilewise_build_info INTERFACE)
target_include_directories(tilewise_build_info INTERFACE ${build_info_dir})
add_dependencies(tilewise_build_info tilewise_write_build_info)
