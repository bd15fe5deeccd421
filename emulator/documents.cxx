/// documents on the emulator: row blocks of sequences of documents, against plain loops.
#include "emulator.h"
//
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "cuda/kernels/rows/documents.cuh"

namespace tilewise::documents {
alignas(1024) unsigned char memory[64 * 1024];
}

namespace {

using namespace tilewise;

int failures = 0;

/// Row blocks, four numbers each; none where a document comes twice by the rule of `documents`, or
/// there are more than `most`.
std::vector<int> expected(const std::vector<int>& ids, int length, int rows, int most) {
  std::vector<int> blocks;
  const int count = static_cast<int>(ids.size());
  int falls = 0;
  for (int begin = 0, end = 0; begin < count; begin = end) {
    const int entry = begin / length, from = entry * length;
    while (end < from + length && ids[end] == ids[begin]) ++end;
    if (begin > from && ids[begin] < ids[begin - 1]) ++falls;
    for (int n = 0; n < (end - begin + rows - 1) / rows; ++n)
      blocks.insert(blocks.end(), {n, begin - from, end - from, entry});
  }
  const bool once = falls == 0 || (falls == 1 && length == count && ids.back() < ids.front());
  return once && static_cast<int>(blocks.size()) <= 4 * most ? blocks : std::vector<int>{};
}

template <documents::Config kConfig, class Id>
void check(const char* name, const std::vector<int>& ids, int stride, int most, int entries = 1) {
  const int length = static_cast<int>(ids.size()) / entries;
  std::vector<Id> held(ids.size() * stride, 77);
  for (std::size_t i = 0; i < ids.size(); ++i) held[i * stride] = ids[i];
  std::vector<int> blocks(4 * (most + 1), -5);
  documents::Args args;
  args.ids = held.data();
  args.stride_b = stride * length;
  args.stride_s = stride;
  args.length = length;
  args.rows = static_cast<int>(ids.size());
  args.most = most;
  args.blocks = blocks.data();
  args.count = blocks.data() + 4 * most;
  emulator::run_block(0, documents::kThreads, [&] { documents::kernel<kConfig>(args); });
  const std::vector<int> wanted = expected(ids, length, kConfig.rows, most);
  bool good = *args.count == static_cast<int>(wanted.size() / 4) && blocks[4 * most + 1] == -5;
  for (std::size_t n = 0; n < wanted.size() && good; ++n) good = blocks[n] == wanted[n];
  std::printf("%s %s: %d row blocks, expected %zu\n", good ? "ok" : "FAILED", name, *args.count,
              wanted.size() / 4);
  failures += good ? 0 : 1;
}

std::vector<int> numbered(int rows, const std::function<int(int)>& id) {
  std::vector<int> ids(static_cast<std::size_t>(rows));
  for (int i = 0; i < rows; ++i) ids[static_cast<std::size_t>(i)] = id(i);
  return ids;
}

}  // namespace

int main() {
  constexpr documents::Config k128{.rows = 128}, k192{.rows = 192};
  constexpr documents::Config kWide{.rows = 192, .wide = true};
  check<k128, int>("one document", numbered(700, [](int) { return 9; }), 1, 9);
  check<k192, int>("of 1,100", numbered(8192, [](int i) { return i / 1100; }), 1, 64);
  check<kWide, std::int64_t>("of 300, wide, strided", numbered(3001, [](int i) { return i / 300; }),
                             3, 40);
  check<k192, int>("uneven, with gaps",
                   numbered(2000, [](int i) { return i < 3      ? -7
                                                     : i < 1025 ? 4
                                                                : 5 + i / 400; }), 1,
                   16);
  check<k192, int>("a tail below the first",
                   numbered(2000, [](int i) { return i < 1900 ? i / 500 : -1; }), 1, 16);
  check<k192, int>("a tail like the first",
                   numbered(2000, [](int i) { return i < 1900 ? i / 500 : 0; }), 1, 16);
  check<k192, int>("falls twice", numbered(2000, [](int i) { return -(i / 500); }), 1, 16);
  check<k192, int>("falls once, above the first",
                   numbered(2000, [](int i) { return i < 600    ? 3
                                                     : i < 1200 ? 9
                                                                : 5; }), 1, 16);
  check<k192, int>("the same twice", numbered(1500, [](int i) { return i / 300 % 3; }), 1, 12);
  check<k128, int>("as many row blocks as fit", numbered(1024, [](int i) { return i / 64; }), 1,
                   16);
  check<k128, int>("one more", numbered(1024, [](int i) { return i / 64 + (i == 1023); }), 1, 16);
  check<k128, int>("a document a row", numbered(3000, [](int i) { return i; }), 1, 36);
  check<k128, int>("two blocks a thread", numbered(40000, [](int i) { return i / 16; }), 1, 4000);
  const auto of_both = [](int i) { return i < 1000 ? i / 300 : 3 + (i - 1000) / 170; };
  check<k128, int>("two entries", numbered(2000, of_both), 1, 24, 2);
  check<k128, int>("two entries, a number above the next one's",
                   numbered(2000, [](int i) { return i % 1000 / 300; }), 2, 24, 2);
  check<k128, int>("two entries, of which one falls",
                   numbered(2000, [](int i) { return i == 1999 ? -1 : i % 1000 / 300; }), 1, 24, 2);
  return failures == 0 ? 0 : 1;
}
