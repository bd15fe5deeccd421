#include "cli/shell/args.h"

#include <gtest/gtest.h>

#include <limits>

#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

using Numbers = std::vector<std::int64_t>;

TEST(Axis, ListsAndRanges) {
  EXPECT_EQ(parse_axis("--seq", "64", 0), Numbers({64}));
  EXPECT_EQ(parse_axis("--seq", "256:16384:x4", 0), Numbers({256, 1024, 4096, 16384}));
  EXPECT_EQ(parse_axis("--seq", "1:8:+3,100", 0), Numbers({1, 4, 7, 100}));
  EXPECT_EQ(parse_axis("--seq", "5:5:x2", 0), Numbers({5}));
  EXPECT_EQ(parse_axis("--seq", "3:20:x2", 0), Numbers({3, 6, 12}));
}

TEST(Axis, EndsAtTheLargestInteger) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(parse_axis("--seq", "4611686018427387904:9223372036854775807:x2", 0),
            Numbers({most / 2 + 1}));
}

TEST(Axis, RefusesWhatIsNoRange) {
  for (const char* text : {"", ",", "a", "1.5", "4:2:x2", "1:8", "1:8:x1", "1:8:*2", "0:8:x2",
                           "1:8:+0", "1:8:+-1", "-3", "1:999999:+1", "99999999999999999999"}) {
    EXPECT_THROW(parse_axis("--seq", text, 0), BadInput) << text;
  }
  EXPECT_THROW(parse_axis("--dim", "0", 1), BadInput);
}

TEST(Axis, MessageNamesOptionTextAndExpectation) {
  try {
    parse_axis("--seq", "8:4:x2", 0);
    FAIL();
  } catch (const BadInput& error) {
    EXPECT_STREQ(error.what(),
                 "--seq '8:4:x2': expected a range FIRST:LAST:xFACTOR or FIRST:LAST:+STEP");
  }
}

TEST(Integers, InDecimalDigitsWithinBounds) {
  EXPECT_EQ(parse_integer("--random", "010", 0), 10);
  EXPECT_EQ(parse_integer<int>("--threads", "08", 1, 1024), 8);
  EXPECT_EQ(parse_integer("--offset", "-3", -5), -3);
  EXPECT_EQ(parse_integer<std::uint64_t>("--seed", "18446744073709551615", 0),
            std::numeric_limits<std::uint64_t>::max());
  for (const char* text : {"", "x", "1.5", "1e3", "0x10", "+1", " 1", "1 ", "-1", "1025"}) {
    EXPECT_THROW(parse_integer<int>("--threads", text, 1, 1024), BadInput) << text;
  }
  for (const char* text : {"-1", "18446744073709551616", "99999999999999999999"}) {
    EXPECT_THROW(parse_integer<std::uint64_t>("--seed", text, 0), BadInput) << text;
  }
}

TEST(Bytes, Units) {
  EXPECT_EQ(parse_bytes("--mem-limit", "4096"), 4096);
  EXPECT_EQ(parse_bytes("--mem-limit", "24GiB"), std::int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("--mem-limit", "1.5g"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("--mem-limit", "500MB"), 500'000'000);
  EXPECT_EQ(parse_bytes("--mem-limit", "8.125MiB"), 8'519'680);
  for (const char* text : {"", "GiB", "-1", "1XB", "1GiBs", "nan", "inf", "1e30"}) {
    EXPECT_THROW(parse_bytes("--mem-limit", text), BadInput) << text;
  }
}

TEST(Devices, Names) {
  EXPECT_EQ(parse_device("--device", "cpu"), Device{});
  EXPECT_EQ(parse_device("--device", "cuda"), (Device{DeviceType::cuda, 0}));
  EXPECT_EQ(parse_device("--device", "cuda:3"), (Device{DeviceType::cuda, 3}));
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999"}) {
    EXPECT_THROW(parse_device("--device", text), BadInput) << text;
  }
}

TEST(Windows, SidesAndOffsets) {
  const Window window = parse_window("--window", "-,0");
  EXPECT_FALSE(window.left.has_value());
  EXPECT_EQ(window.right, 0);
  EXPECT_EQ(parse_window("--window", "-3,5").left, -3);
  for (const char* text : {"", "3", "1,2,3", "a,b"}) {
    EXPECT_THROW(parse_window("--window", text), BadInput) << text;
  }
}

TEST(Texts, ForPeople) {
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(std::int64_t{16} << 30), "16.0 GiB");
}

}  // namespace
}  // namespace tilewise::cli
