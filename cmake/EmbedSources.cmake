# cmake -D root= -D files=A|B -D output= -P EmbedSources.cmake

string(REPLACE "|" ";" files "${files}")
list(SORT files)
list(LENGTH files count)
set(text "#include \"embedded_sources.h\"\n\n#include <array>\n#include <string_view>\n\nusing namespace std::string_view_literals;\n\nnamespace tilewise::cuda {\n\n")
# Literals that know their length: clang counts that of all sources as steps of one constant.
string(APPEND text "std::span<const EmbeddedSource> embedded_sources() {\n")
string(APPEND text "  static constexpr std::array<EmbeddedSource, ${count}> kSources{{\n")
foreach(file IN LISTS files)
  file(RELATIVE_PATH path ${root} ${file})
  file(READ ${file} source)
  string(APPEND text "{\"${path}\", R\"tilewise(${source})tilewise\"sv},\n")
endforeach()
string(APPEND text "  }};\n  return kSources;\n}\n\n}  // namespace tilewise::cuda\n")
file(WRITE ${output} "${text}")
