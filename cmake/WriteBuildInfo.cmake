# cmake -D source= -D version= -D compiler= -D build_type= -D output= -P WriteBuildInfo.cmake

set(commit "")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${source} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[
#pragma once

#define TILEWISE_VERSION "@version@"
#define TILEWISE_COMMIT "@commit@"
#define TILEWISE_COMPILER "@compiler@"
#define TILEWISE_BUILD_TYPE "@build_type@"
]])
