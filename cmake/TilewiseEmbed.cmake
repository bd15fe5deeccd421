# embedded_sources.h: the text of the device code, which NVRTC compiles at run time. Paths in it are
# relative to src/, as the sources' own includes are.

file(GLOB_RECURSE embedded_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.cuh
     ${PROJECT_SOURCE_DIR}/src/cuda/kernels/*args.h ${PROJECT_SOURCE_DIR}/src/cuda/tile/*.h)
set(embedded_dir ${PROJECT_BINARY_DIR}/generated)
set(embedded_script ${PROJECT_SOURCE_DIR}/cmake/EmbedSources.cmake)

file(CONFIGURE OUTPUT ${embedded_dir}/embedded_sources.h @ONLY CONTENT [[
#pragma once

#include <span>
#include <string_view>

namespace tilewise::cuda {

struct EmbeddedSource {
  std::string_view path;  ///< "cuda/tile/mma.cuh"
  std::string_view text;
};

/// Every device source that the library carries, ordered by path.
std::span<const EmbeddedSource> embedded_sources();

}  // namespace tilewise::cuda
]])

# A list crosses a command line as one argument when its semicolons do not.
string(JOIN "|" embedded_argument ${embedded_files})
add_custom_command(
  OUTPUT ${embedded_dir}/embedded_sources.cpp
  COMMAND ${CMAKE_COMMAND} -D root=${PROJECT_SOURCE_DIR}/src -D "files=${embedded_argument}" -D
          output=${embedded_dir}/embedded_sources.cpp -P ${embedded_script}
  DEPENDS ${embedded_files} ${embedded_script}
  COMMENT "Embedding the device sources" VERBATIM)
