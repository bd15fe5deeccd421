// libnvrtc.so.13 that compiles kernels for the emulator. TILEWISE_CARD_COMPILE is the command, to
// which the object's and the source's names are added. card.py sets it.
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

constexpr char kNothing[] = "nothing";
constexpr int kFailed = 6;

struct Program {
  std::string source, log, object;
};
Program& of(void* program) { return *static_cast<Program*>(program); }

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The generated wgmma wrappers hold instructions. The emulator has its own.
std::string without_wrappers(std::string source) {
  const std::string begin = "template <>\nstruct tilewise::tile::Wgmma<", end = "\n};\n";
  for (std::size_t at; (at = source.find(begin)) != std::string::npos;)
    source.erase(at, source.find(end, at) + end.size() - at);
  return source;
}

/// The unit (cuda/jit/unit.h) with the function that the driver calls.
std::string emulated(const std::string& source) {
  std::smatch found;
  const std::regex kernel(R"(\n(\w+)\(const __grid_constant__ ([\w:]+(?:<.*>)?) args\))");
  if (!std::regex_search(source, found, kernel)) return "#error a unit of another form";
  const std::string name = found[1], args = found[2];
  const bool has_wgmma = source.find("cuda/tile/hopper/wgmma.cuh") != std::string::npos;
  const bool blocks_wait = name == "bwd_sm90";
  return "#define __global__\n#define __launch_bounds__(...)\n#define __grid_constant__\n"
         "#include \"run_blocks.h\"\n" +
         std::string(has_wgmma ? "#include \"wgmma.h\"\n" : "") + without_wrappers(source) +
         "extern \"C\" CARD_EXPORT const char card_name[] = \"" + name +
         "\";\n"
         "extern \"C\" CARD_EXPORT void card_launch(const unsigned* grid, unsigned threads, "
         "unsigned bytes,\n"
         "                            const void* args) {\n"
         "  card::run(grid, threads, bytes, " +
         (blocks_wait ? "true" : "false") + ", [&] { " + name + "(*static_cast<const " + args +
         "*>(args)); });\n}\n";
}

bool compile(Program& program) {
  const char* command = std::getenv("TILEWISE_CARD_COMPILE");
  char folder[] = "/tmp/tilewise-card-XXXXXX";
  if (command == nullptr || mkdtemp(folder) == nullptr) return false;
  const std::string stem = std::string(folder) + "/unit";
  std::ofstream(stem + ".cxx") << emulated(program.source);
  const std::string all =
      std::string(command) + " -o " + stem + ".so -x c++ " + stem + ".cxx > " + stem + ".log 2>&1";
  const bool done = std::system(all.c_str()) == 0;
  program.log = read_file(stem + ".log");
  program.object = read_file(stem + ".so");
  for (const char* end : {".cxx", ".so", ".log"}) unlink((stem + end).c_str());
  rmdir(folder);
  return done;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
int nvrtcGetNumSupportedArchs(int* count) { return *count = 1, 0; }
int nvrtcGetSupportedArchs(int* archs) { return *archs = 90, 0; }
const char* nvrtcGetErrorString(int) { return "the C++ compiler failed"; }
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  return *program = new Program{source, {}, {}}, 0;
}
int nvrtcDestroyProgram(void** program) { return delete static_cast<Program*>(*program), 0; }
int nvrtcCompileProgram(void* program, int, const char* const*) {
  return compile(of(program)) ? 0 : kFailed;
}
int nvrtcGetProgramLogSize(void* program, std::size_t* bytes) {
  return *bytes = of(program).log.size() + 1, 0;
}
int nvrtcGetProgramLog(void* program, char* text) {
  return std::strcpy(text, of(program).log.c_str()), 0;
}
int nvrtcGetCUBINSize(void* program, std::size_t* bytes) {
  return *bytes = of(program).object.size(), 0;
}
int nvrtcGetCUBIN(void* program, char* code) {
  const std::string& object = of(program).object;
  return std::memcpy(code, object.data(), object.size()), 0;
}
int nvrtcGetPTXSize(void*, std::size_t* bytes) { return *bytes = sizeof(kNothing), 0; }
int nvrtcGetPTX(void*, char* code) { return std::memcpy(code, kNothing, sizeof(kNothing)), 0; }

}  // extern "C"
