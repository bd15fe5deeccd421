#include "cpu/textbook/blas.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tilewise/error.h"

namespace tilewise::cpu {
namespace {

/// m x k times k x n by the definition.
std::vector<float> product(int m, int n, int k, Factor a, Factor b) {
  const auto at = [](Factor f, int r, int c) {
    return f.transposed ? f.data[c * f.ld + r] : f.data[r * f.ld + c];
  };
  std::vector<float> c(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int l = 0; l < k; ++l) {
        c[static_cast<std::size_t>(i * n + j)] += at(a, i, l) * at(b, l, j);
      }
    }
  }
  return c;
}

/// In a child: what require_room says once the address space may grow by so much.
int room_in_child(rlim_t bytes, int threads) {
  const pid_t child = fork();
  if (child == 0) {
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t size = static_cast<rlim_t>(pages * getpagesize()) + bytes;
    const rlimit limit{size, size};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
    try {
      Blas::require_room(threads);
    } catch (const OutOfMemory&) {
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Blas, AsksForNoMoreThanTheAddressSpaceHas) {
  constexpr rlim_t kMiB = 1 << 20;
  EXPECT_EQ(room_in_child(100 * kMiB, 1), 1) << "a buffer has 128 MiB";
  EXPECT_EQ(room_in_child(600 * kMiB, 16), 1);
  EXPECT_EQ(room_in_child(600 * kMiB, 2), 0);
  Blas::require_room(1024);  // no limit here
}

TEST(Blas, MultipliesInEveryOrientation) {
  const Blas* blas = Blas::get();
  if (blas == nullptr) GTEST_SKIP() << Blas::missing_reason();
  EXPECT_TRUE(Blas::missing_reason().empty());
  constexpr int m = 5;
  constexpr int n = 7;
  constexpr int k = 11;
  std::vector<float> x(16 * 16);
  std::vector<float> y(16 * 16);
  for (std::size_t i = 0; i < x.size(); ++i) {  // small integers: products are exact
    x[i] = static_cast<float>(static_cast<int>(i * 7 % 13) - 6);
    y[i] = static_cast<float>(static_cast<int>(i * 5 % 11) - 5);
  }
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      const Factor a{x.data(), 16, a_transposed};
      const Factor b{y.data(), 16, b_transposed};
      // With beta = 0 what C held before does not matter, NaN neither.
      std::vector<float> c(m * 9, std::numeric_limits<float>::quiet_NaN());
      blas->multiply(m, n, k, a, b, 0.0F, c.data(), 9);
      blas->multiply(m, n, k, a, b, 1.0F, c.data(), 9);
      const std::vector<float> expected = product(m, n, k, a, b);
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
          EXPECT_EQ(c[static_cast<std::size_t>(i * 9 + j)],
                    2.0F * expected[static_cast<std::size_t>(i * n + j)]);
        }
      }
    }
  }
}

TEST(Blas, OneThreadIsGivenBack) {
  const Blas* blas = Blas::get();
  if (blas == nullptr) GTEST_SKIP() << Blas::missing_reason();
  void* library = dlopen(blas->name().c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto threads = reinterpret_cast<int (*)()>(dlsym(library, "openblas_get_num_threads"));
  if (threads == nullptr) GTEST_SKIP() << blas->name() << " is not an OpenBLAS";
  const int before = threads();
  {
    const Blas::OneThread outer(*blas);
    EXPECT_EQ(threads(), 1);
    {
      const Blas::OneThread inner(*blas);
      EXPECT_EQ(threads(), 1);
    }
    EXPECT_EQ(threads(), 1);
  }
  EXPECT_EQ(threads(), before);
}

TEST(Blas, OpeningLeavesTheEnvironmentAlone) {
  const char* before = std::getenv("OPENBLAS_CORETYPE");
  const std::string kept = before != nullptr ? before : "(none)";
  Blas::get();
  const char* after = std::getenv("OPENBLAS_CORETYPE");
  EXPECT_EQ(after != nullptr ? after : "(none)", kept);
}

TEST(Blas, SaysWhatIsMissing) {
  // The library is opened once in a process, and this one may have it open: ask a fresh one, which
  // runs this very test and stops here.
  constexpr const char* kFresh = "TILEWISE_TEST_FRESH_PROCESS";
  if (std::getenv(kFresh) != nullptr) {
    EXPECT_EQ(Blas::get(), nullptr);
    printf("reason: %s\n", Blas::missing_reason().c_str());
    return;
  }
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    setenv("TILEWISE_BLAS", "libtilewise-no-such-blas.so", 1);
    setenv(kFresh, "1", 1);
    execl("/proc/self/exe", "test_cpu", "--gtest_filter=Blas.SaysWhatIsMissing", nullptr);
    _exit(1);
  }
  close(ends[1]);
  std::string output;
  char buffer[512];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    output.append(buffer, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  EXPECT_NE(output.find("reason: TILEWISE_BLAS is \"libtilewise-no-such-blas.so\": "),
            std::string::npos)
      << output;
}

}  // namespace
}  // namespace tilewise::cpu
