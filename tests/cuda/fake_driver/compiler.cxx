// libnvrtc.so.13 whose every program compiles at once, to nothing.
#include <cstddef>
#include <cstring>

namespace {

int object;
constexpr char kNothing[] = "nothing";

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
int nvrtcGetNumSupportedArchs(int* count) { return *count = 1, 0; }
int nvrtcGetSupportedArchs(int* archs) { return *archs = 90, 0; }
const char* nvrtcGetErrorString(int) { return "no compiler"; }
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  return *program = &object, 0;
}
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcGetProgramLogSize(void*, std::size_t* bytes) { return *bytes = 1, 0; }
int nvrtcGetProgramLog(void*, char* text) { return *text = '\0', 0; }
int nvrtcGetCUBINSize(void*, std::size_t* bytes) { return *bytes = sizeof(kNothing), 0; }
int nvrtcGetCUBIN(void*, char* code) { return std::memcpy(code, kNothing, sizeof(kNothing)), 0; }
int nvrtcGetPTXSize(void*, std::size_t* bytes) { return *bytes = sizeof(kNothing), 0; }
int nvrtcGetPTX(void*, char* code) { return std::memcpy(code, kNothing, sizeof(kNothing)), 0; }

}  // extern "C"
