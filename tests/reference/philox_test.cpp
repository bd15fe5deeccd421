#include "problem/philox.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace tilewise {
namespace {

/// Known answers published with Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  constexpr std::uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxCounter{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(philox4x32_10({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U},
                          {0xA4093822U, 0x299F31D0U}),
            (PhiloxCounter{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

/// Against the words that an independent implementation wrote (philox_words.py).
TEST(Philox, WordsOfAnotherImplementation) {
  std::ifstream file(std::string(TILEWISE_SOURCE_DIR) + "/tests/reference/philox_words.txt");
  std::uint64_t seed = 0, offset = 0;
  std::int64_t bh = 0, i = 0, j = 0;
  std::uint32_t word = 0;
  int lines = 0;
  while (file >> std::dec >> seed >> offset >> bh >> i >> j >> std::hex >> word) {
    const DropoutMask mask({.p = 0.5, .seed = seed, .offset = offset});
    EXPECT_EQ(mask.words(bh, i, j / 4)[static_cast<std::size_t>(j % 4)], word)
        << "line " << lines + 1;
    EXPECT_EQ(mask.keeps(bh, i, j), word >= 0x80000000U);
    ++lines;
  }
  EXPECT_EQ(lines, 28);
}

TEST(DropoutMask, ThresholdIsTheFloorOfPTimesTwoToThe32) {
  EXPECT_EQ(DropoutMask({.p = 0.0}).threshold(), 0U);
  EXPECT_EQ(DropoutMask({.p = 1.0}).threshold(), std::uint64_t{1} << 32);
  EXPECT_EQ(DropoutMask({.p = 0.3}).threshold(), 1288490188U);
  EXPECT_TRUE(DropoutMask({.p = 0.0}).keeps(0U));
  EXPECT_FALSE(DropoutMask({.p = 1.0}).keeps(0xFFFFFFFFU));
  EXPECT_FALSE(DropoutMask({.p = 0.3}).keeps(1288490187U));
  EXPECT_TRUE(DropoutMask({.p = 0.3}).keeps(1288490188U));
}

TEST(DropoutMask, Scale) {
  EXPECT_EQ(DropoutMask({.p = 0.0}).scale(), 1.0);
  EXPECT_EQ(DropoutMask({.p = 0.5}).scale(), 2.0);
  EXPECT_EQ(DropoutMask({.p = 1.0}).scale(), 0.0);
}

}  // namespace
}  // namespace tilewise
