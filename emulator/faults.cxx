/// What the emulator must find: small kernels, each as it should be and with one wait or barrier
/// left out. The first must run without a fault however its warps stall, of the others some run
/// must show it.
#include <cstdio>

#include "cuda/tile/hopper/mbarrier.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"
#include "cuda/tile/hopper/signal.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "wgmma.h"

namespace {

using namespace tilewise::tile;

constexpr int kRuns = 60;
constexpr u32 kPlace = 0, kBarrier = 16384, kEmpty = 16392;
constexpr u32 kBytes = 2048;  ///< of 128 threads, 16 each
int faults = 0;

int thread() { return static_cast<int>(threadIdx.x); }
void sync() { named_barrier_sync(1, 128); }
void expect(bool holds) {
  if (!holds) emulator::on_fault("a wrong value");
}
/// The thread's 16 bytes at `place`.
void stage(u32 place, float x) { store_shared_16(place + 16 * thread(), x, x, x, x); }

/// What another warp writes must be there, and what it reads must stay.
template <bool kWritten, bool kRead>
void read_a_neighbour() {
  stage(kPlace, 1.0F);
  if (kWritten) sync();
  expect(load_shared_f32(kPlace + 16 * ((thread() + 32) % 128)) > 0.0F);
  if (kRead) sync();
  stage(kPlace, 2.0F);
}

/// An access begins at a multiple of its bytes.
template <bool kRight>
void read_across() {
  stage(kPlace, 1.0F);
  sync();
  expect(load_shared_8(kPlace + 16 * thread() + (kRight ? 8 : 4)).x > 0.0F);
}

/// The place of a bulk addition is used again: its reads have to be waited for.
template <bool kRight>
void reuse_what_is_stored() {
  static float sums[kBytes / 4];
  stage(kPlace, 1.0F);
  fence_async_shared();
  sync();
  if (thread() == 0) {
    bulk_add(sums, kPlace, kBytes);
    bulk_commit();
    if (kRight) bulk_wait_read();
  }
  sync();
  stage(kPlace, 2.0F);
  if (thread() == 0) bulk_wait_read();
}
/// The same within a warp, whose lane 0 waits.
template <bool kRight>
void reuse_in_a_warp() {
  static float sums[128];
  for (int i = 0; i < 8; ++i) {
    if (thread() == 0) bulk_wait_read();
    if (kRight) __syncwarp();
    stage(kPlace, static_cast<float>(i));
    fence_async_shared();
    __syncwarp();
    if (thread() == 0) {
      bulk_add(sums, kPlace, 512);
      bulk_commit();
    }
  }
  if (thread() > 0) return;
  bulk_wait();
  for (float& sum : sums) {
    expect(sum == 28.0F);
    sum = 0.0F;
  }
}
/// Shared memory must outlive the copies out of it.
template <bool kRight>
void end_after_store() {
  static float sums[128];
  if (thread() > 0) return;
  bulk_add(sums, kPlace, 512);
  bulk_commit();
  if (kRight) bulk_wait_read();
}

using Product = Wgmma<Element::bf16, 64>;
struct Operands {
  float sums[32] = {};
  u32 words[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};  // ones

  /// Ones at kPlace, which a product reads: 16 everywhere.
  void issue() {
    for (int i = 0; i < 4; ++i) {
      store_shared_16(kPlace + 64 * thread() + 16 * i, __uint_as_float(words[0]),
                      __uint_as_float(words[0]), __uint_as_float(words[0]),
                      __uint_as_float(words[0]));
    }
    fence_async_shared();
    sync();
    wgmma_fence();
    Product::multiply_register_rows(sums, words[0], words[1], words[2], words[3],
                                    panel_descriptor(kPlace, 16), 0);
    wgmma_commit();
  }
  void check() const {
    for (const float x : sums) expect(x == 16.0F);
  }
};
/// One warp's wait does not prove that the others' products have read the place.
template <bool kRight>
void reuse_what_a_product_reads() {
  Operands o;
  o.issue();
  wgmma_wait<0>();
  if (kRight) sync();
  stage(kPlace, 2.0F);
  o.check();
}
template <bool kRight>
void take_accumulators() {
  Operands o;
  o.issue();
  if (kRight) wgmma_wait<0>();
  o.check();
  if (!kRight) wgmma_wait<0>();
}
template <bool kRight>
void change_registers() {
  Operands o;
  o.issue();
  if (kRight) wgmma_wait<0>();
  o.words[1] = 0;
  if (!kRight) wgmma_wait<0>();
  o.check();
}

/// Rows 1, 2, 3, ... through one place: the producer waits until all have read (kEmptied), the
/// readers until the row has come (kFilled).
template <bool kEmptied, bool kFilled>
void pass_rows() {
  static float rows[8][kBytes / 4];
  if (thread() == 0) {
    mbarrier_init(kBarrier, 1);
    mbarrier_init(kEmpty, 4);
    for (int i = 0; i < 8; ++i) std::fill_n(rows[i], kBytes / 4, static_cast<float>(i + 1));
  }
  named_barrier_sync(2, 160);
  for (u32 i = 0; i < 8; ++i) {
    if (thread() == 128) {
      if (kEmptied) mbarrier_wait(kEmpty, i % 2 ^ 1);
      mbarrier_expect(kBarrier, kBytes);
      bulk_load(kPlace, rows[i], kBytes, kBarrier);
      if (!kEmptied) mbarrier_wait(kBarrier, i % 2);
    } else if (thread() < 128) {
      if (kFilled) mbarrier_wait(kBarrier, i % 2);
      const float x = load_shared_f32(kPlace + 16 * thread());
      expect(x == static_cast<float>(i + 1));
      __syncwarp();
      if (thread() % 32 == 0) mbarrier_arrive(kEmpty);
    }
  }
  // The producer outlives its copies.
  if (thread() == 128 && !kFilled) mbarrier_wait(kBarrier, 1);
}

/// Thread 0 tells the producer for all four warps that a row may be overwritten: it has to know
/// that they have seen it.
template <bool kRight>
void give_back_for_all() {
  static float row[kBytes / 4];
  if (thread() == 0) {
    mbarrier_init(kBarrier, 1);
    mbarrier_init(kEmpty, 1);
  }
  named_barrier_sync(2, 160);
  for (u32 i = 0; i < 8; ++i) {
    if (thread() == 128) {
      mbarrier_wait(kEmpty, i % 2 ^ 1);
      mbarrier_expect(kBarrier, kBytes);
      bulk_load(kPlace, row, kBytes, kBarrier);
    } else if (thread() < 128) {
      mbarrier_wait(kBarrier, i % 2);
      if (kRight) sync();
      if (thread() == 0) mbarrier_arrive(kEmpty);
    }
  }
}

/// Block 0 adds to memory and tells block 1, which looks before block 0 ends.
template <bool kRight>
void tell_of_additions() {
  static float sums[128];
  static u32 told, seen, runs;
  if (blockIdx.x == 0) {
    stage(kPlace, 1.0F);
    fence_async_shared();
    __syncwarp();
    if (thread() > 0) return;
    bulk_add(sums, kPlace, 512);
    bulk_commit();
    if (kRight) bulk_wait();
    signal_add(&told, 1);
    signal_wait(&seen, told);
    bulk_wait_read();
  } else if (thread() == 0) {
    signal_wait(&told, ++runs);
    expect(sums[5] == static_cast<float>(runs));
    signal_add(&seen, 1);
  }
}

/// The copying warpgroup gives registers back, the two that compute take them: together no more
/// than the block starts with, 3 x 168.
template <bool kFits>
void share_registers() {
  if (thread() < 128) {
    give_registers<kFits ? 56 : 64>();
  } else {
    take_registers<224>();
  }
}

/// All who come to a barrier name the same number of threads.
template <bool kRight>
void count_threads() {
  if (thread() < 32) {
    named_barrier_arrive(2, kRight ? 64 : 96);
  } else {
    named_barrier_sync(2, 64);
  }
}

int failures = 0;

int faults_of(unsigned blocks, unsigned threads, void (*kernel)()) {
  faults = 0;
  for (int run = 0; run < kRuns; ++run) emulator::run_grid(nullptr, blocks, threads, kernel);
  return faults;
}
void check(const char* name, unsigned blocks, unsigned threads, void (*right)(), void (*wrong)()) {
  const int of_right = faults_of(blocks, threads, right);
  const int of_wrong = faults_of(blocks, threads, wrong);
  const bool good = of_right == 0 && of_wrong > 0;
  std::printf("%s %s: %d faults, %d without the wait\n", good ? "ok" : "FAILED", name, of_right,
              of_wrong);
  failures += good ? 0 : 1;
}

}  // namespace

int main() {
  emulator::on_fault = [](const std::string&) { ++faults; };
  check("where an access begins", 1, 128, read_across<true>, read_across<false>);
  check("another warp's write", 1, 128, read_a_neighbour<true, true>,
        read_a_neighbour<false, true>);
  check("another warp's read", 1, 128, read_a_neighbour<true, true>, read_a_neighbour<true, false>);
  check("a place that is stored", 1, 128, reuse_what_is_stored<true>, reuse_what_is_stored<false>);
  check("a place that is stored, in a warp", 1, 32, reuse_in_a_warp<true>, reuse_in_a_warp<false>);
  check("stores at the end", 1, 32, end_after_store<true>, end_after_store<false>);
  check("a place that a product reads", 1, 128, reuse_what_a_product_reads<true>,
        reuse_what_a_product_reads<false>);
  check("accumulators", 1, 128, take_accumulators<true>, take_accumulators<false>);
  check("registers of a product", 1, 128, change_registers<true>, change_registers<false>);
  check("a row that is read", 1, 160, pass_rows<true, true>, pass_rows<false, true>);
  check("a row that comes", 1, 160, pass_rows<true, true>, pass_rows<true, false>);
  check("a row given back for all", 1, 160, give_back_for_all<true>, give_back_for_all<false>);
  check("who comes to a barrier", 1, 64, count_threads<true>, count_threads<false>);
  check("additions to memory", 2, 32, tell_of_additions<true>, tell_of_additions<false>);
  emulator::patience = 1000;
  check("registers that are given", 1, 384, share_registers<true>, share_registers<false>);
  return failures == 0 ? 0 : 1;
}
