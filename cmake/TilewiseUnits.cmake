# What takes less time to compile: headers that many units share are read once, and a sanitizer's
# build has fewer units.

set(tilewise_std_headers <algorithm> <array> <cmath> <functional> <map> <memory> <mutex> <optional>
                         <span> <string> <vector>)

# tilewise_precompile(TARGET HEADER...) or (TARGET REUSE_FROM OTHER): these headers are
# read once for all of a target's units. A file includes what it uses all the same: clang-tidy
# reads it without. Behind a compiler's cache nothing is precompiled: a cache knows such units less
# often. More headers than the most common ones cost g++ more than they save.
function(tilewise_precompile target)
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  if(ARGV1 STREQUAL "REUSE_FROM")
    target_precompile_headers(${target} ${ARGN})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
  # They are compiled with the target's flags alone.
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(own ${source} COMPILE_OPTIONS)
    if(own)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# Gives the sources of each folder to one unit: most of a unit's time in a sanitizer's build goes
# into reading its headers and instrumenting what it takes of them. Those with flags of their own stay
# apart, and so do those whose path matches APART: names of a file's own would meet there.
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
