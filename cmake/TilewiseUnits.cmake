# Fewer units of a sanitizer's build: most of a unit's time goes into reading its headers and
# instrumenting what it takes of them.

# Gives the sources of each folder to one unit. Those with flags of their own stay apart, and so do
# those whose path matches APART: names of a file's own would meet there.
function(tilewise_unite_folders target)
  cmake_parse_arguments(PARSE_ARGV 1 unite "" "APART" "SOURCES")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source IN LISTS unite_SOURCES)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE path)
    if(NOT unite_APART OR NOT path MATCHES "${unite_APART}")
      cmake_path(GET path PARENT_PATH folder)
      string(MAKE_C_IDENTIFIER "${folder}" group)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()
