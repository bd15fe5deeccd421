/// Launches of kernels that are shared objects of the emulator's (tests/cuda/card). All other
/// kernels do nothing.
#pragma once

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <string>

#include "memory.h"

namespace fake {

/// What the function card_launch of such an object takes.
using Launch = void (*)(const unsigned* grid, unsigned threads, unsigned shared_bytes,
                        const void* args);

inline const char* running = nullptr;  ///< the kernel

inline void report_signal(int signal, siginfo_t* info, void*) {
  char where[100], text[300];
  memory().describe(info->si_addr, where, sizeof(where));
  const int size = std::snprintf(text, sizeof(text), "%s touched what is not its own: %s\n",
                                 running != nullptr ? running : "the host", where);
  if (write(STDERR_FILENO, text, static_cast<std::size_t>(size)) < 0) std::abort();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// The object in `image`; null where it is none.
inline void* load(const void* image) {
  Elf64_Ehdr header;
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0) return nullptr;
  std::memcpy(&header, image, sizeof(header));
  const std::size_t bytes = header.e_shoff + std::size_t{header.e_shentsize} * header.e_shnum;
  const int file = memfd_create("kernel", 0);
  if (write(file, image, bytes) != static_cast<ssize_t>(bytes)) return nullptr;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  struct sigaction action {};
  action.sa_sigaction = report_signal;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  return object;
}

/// `config`: the first seven words of a CUlaunchConfig.
inline bool launch(void* object, const unsigned* config, const void* args) {
  const auto run = reinterpret_cast<Launch>(dlsym(object, "card_launch"));
  if (run == nullptr || config[2] != 1) return false;
  running = static_cast<const char*>(dlsym(object, "card_name"));
  if (std::getenv("TILEWISE_CARD_TRACE") != nullptr)
    std::fprintf(stderr, "%s: %u x %u blocks\n", running, config[0], config[1]);
  memory().open();
  run(config, config[3], config[6], args);
  memory().close(running);
  running = nullptr;
  return true;
}

}  // namespace fake
