# tilewise.pack: kernels compiled at build time, beside the library. TILEWISE_PACK is auto (every
# architecture), none, or a list such as "80;90". Within another project it is none unless that
# project or its user says otherwise, because a pack takes minutes.

set(pack_default auto)
if(NOT PROJECT_IS_TOP_LEVEL)
  set(pack_default none)
endif()
set(TILEWISE_PACK ${pack_default} CACHE STRING
    "Kernels to compile at build time: auto, none, or architectures")

set(pack_archs ${TILEWISE_PACK})
if(TILEWISE_PACK STREQUAL "auto")
  set(pack_archs 80 86 89 90 100 120)
elseif(TILEWISE_PACK STREQUAL "none")
  set(pack_archs "")
endif()

file(GLOB pack_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/pack/*.cpp)
add_executable(tilewise_pack ${pack_sources})
target_link_libraries(tilewise_pack PRIVATE tilewise_core)
set_target_properties(tilewise_pack PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tools)
if(NOT PROJECT_IS_TOP_LEVEL)
  set_target_properties(tilewise_pack PROPERTIES EXCLUDE_FROM_ALL ON)
endif()

set(pack_file ${PROJECT_BINARY_DIR}/tilewise.pack)
# A sanitizer's build would be slow at this and make the same file; its tests compile what they need.
if(pack_archs AND NOT TILEWISE_SANITIZE)
  # The tool holds the device sources; what they give unchanged comes from the kernel cache.
  add_custom_command(OUTPUT ${pack_file} COMMAND tilewise_pack ${pack_file} ${pack_archs}
                     DEPENDS tilewise_pack
                     COMMENT "Compiling the kernel pack" VERBATIM)
  add_custom_target(tilewise_pack_file ALL DEPENDS ${pack_file})
  # A build of some targets has none.
  install(FILES ${pack_file} DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endif()
