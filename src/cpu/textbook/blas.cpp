#include "cpu/textbook/blas.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>

#include "cpu/micro/isa.h"
#include "tilewise/error.h"

namespace tilewise::cpu {
namespace {

constexpr int kRowMajor = 101;
constexpr int kNoTrans = 111;
constexpr int kTrans = 112;

/// Sets an environment variable for its lifetime, unless the user has.
class DefaultVariable {
 public:
  DefaultVariable(const char* name, const char* value) : name_(name) {
    set_ = value != nullptr && std::getenv(name) == nullptr && setenv(name, value, 1) == 0;
  }
  ~DefaultVariable() {
    if (set_) unsetenv(name_);
  }
  DefaultVariable(const DefaultVariable&) = delete;
  DefaultVariable& operator=(const DefaultVariable&) = delete;

 private:
  const char* name_;
  bool set_ = false;
};

/// The OpenBLAS kernels for this CPU. Releases older than a CPU take it for an ancient one.
const char* core_type() {
  switch (best_isa()) {
    case Isa::amx:
    case Isa::avx512bf16:
    case Isa::avx512:
      return "SkylakeX";
    case Isa::avx2:
      return "Haswell";
    case Isa::scalar:
      return nullptr;
  }
  return nullptr;
}

void* open_library(const char* name) {
  if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return library;
  // NOTE: OpenBLAS reads its core type while it is being loaded, and only from the environment.
  const DefaultVariable core("OPENBLAS_CORETYPE", core_type());
  return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

/// Callers inside Blas::OneThread, and the threads that BLAS had before the first of them.
struct Sessions {
  std::mutex mutex;
  int inside = 0;
  int threads_before = 1;
};

Sessions& sessions() {
  static Sessions& all = *new Sessions;  // callers may outlive static objects
  return all;
}

}  // namespace

/// What opening the library gave.
struct Opened {
  std::optional<Blas> blas;
  std::string reason;

  Opened() {
    // While it is loaded OpenBLAS takes a buffer for each CPU.
    try {
      Blas::require_room(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)) + 1);
    } catch (const OutOfMemory& error) {
      reason = error.what();
      return;
    }
    const char* named = std::getenv("TILEWISE_BLAS");
    if (named != nullptr && *named != '\0') {
      if (!try_library(named))
        reason = "TILEWISE_BLAS is \"" + std::string(named) + "\": " + reason;
      return;
    }
    for (const char* name : {"libopenblas.so.0", "libopenblas.so"}) {
      if (try_library(name)) return;
    }
    reason = "OpenBLAS was not found (" + reason +
             "). Install Debian's libopenblas0-pthread, or set TILEWISE_BLAS to a library with "
             "cblas_sgemm";
  }

 private:
  bool try_library(const char* name) {
    void* library = open_library(name);
    if (library == nullptr) {
      const char* error = dlerror();
      reason = error != nullptr ? error : "it cannot be opened";
      return false;
    }
    const auto sgemm = symbol<Blas::Sgemm>(library, "cblas_sgemm");
    if (sgemm == nullptr) {
      reason = std::string(name) + " has no cblas_sgemm";
      return false;
    }
    blas.emplace();
    blas->name_ = name;
    blas->sgemm_ = sgemm;
    blas->get_threads_ = symbol<Blas::GetThreads>(library, "openblas_get_num_threads");
    blas->set_threads_ = symbol<Blas::SetThreads>(library, "openblas_set_num_threads");
    reason.clear();
    return true;
  }
};

const Opened& Blas::opened() {
  static const Opened& once = *new Opened;
  return once;
}

const Blas* Blas::get() { return opened().blas ? &*opened().blas : nullptr; }

std::string Blas::missing_reason() { return opened().reason; }

void Blas::require_room(int threads) {
  constexpr std::int64_t kBuffer = std::int64_t{32} << 22;  // OpenBLAS's BUFFER_SIZE on x86-64
  static std::mutex mutex;
  static int granted = 0;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const std::lock_guard lock(mutex);
  if (threads <= granted) return;
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::int64_t left = static_cast<std::int64_t>(limit.rlim_cur) - pages * ::getpagesize();
  const std::int64_t wanted = (threads - granted) * kBuffer;
  if (left < wanted) {
    throw OutOfMemory("OpenBLAS wants " + std::to_string(wanted >> 20) +
                      " MiB of address space for " + std::to_string(threads) +
                      " threads, and its limit (ulimit -v) leaves " +
                      std::to_string(std::max<std::int64_t>(left, 0) >> 20) + " MiB");
  }
  granted = threads;
}

void Blas::multiply(std::int64_t m, std::int64_t n, std::int64_t k, Factor a, Factor b, float beta,
                    float* c, std::int64_t ldc) const {
  assert(m <= INT_MAX && n <= INT_MAX && k <= INT_MAX);
  assert(a.ld <= INT_MAX && b.ld <= INT_MAX && ldc <= INT_MAX);
  sgemm_(kRowMajor, a.transposed ? kTrans : kNoTrans, b.transposed ? kTrans : kNoTrans,
         static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1.0F, a.data,
         static_cast<int>(a.ld), b.data, static_cast<int>(b.ld), beta, c, static_cast<int>(ldc));
}

Blas::OneThread::OneThread(const Blas& blas) : blas_(blas) {
  if (blas_.get_threads_ == nullptr || blas_.set_threads_ == nullptr) return;
  const std::lock_guard lock(sessions().mutex);
  if (sessions().inside++ > 0) return;
  sessions().threads_before = blas_.get_threads_();
  if (sessions().threads_before != 1) blas_.set_threads_(1);
}

Blas::OneThread::~OneThread() {
  if (blas_.get_threads_ == nullptr || blas_.set_threads_ == nullptr) return;
  const std::lock_guard lock(sessions().mutex);
  if (--sessions().inside > 0) return;
  if (sessions().threads_before != 1) blas_.set_threads_(sessions().threads_before);
}

}  // namespace tilewise::cpu
