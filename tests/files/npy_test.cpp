#include "cli/files/npy.h"

#include "tests/files/files_testing.h"

namespace tilewise::files {
namespace {

using namespace std::string_literals;

/// A file of the given version around a header's text, as it stands.
std::string file_with(const std::string& header, const std::string& data, int version = 1) {
  std::string file = "\x93NUMPY" + std::string(1, static_cast<char>(version)) + '\0';
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte) {
    file += static_cast<char>(header.size() >> (8 * byte) & 0xff);
  }
  return file + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape,
                      const std::string& fortran_order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran_order + ", 'shape': " + shape +
         ", }   \n";
}

Array parse(const std::string& file) {
  MemorySource source("x.npy", as_file(file));
  return read_npy(source);
}

std::string error_of(const std::string& file) {
  return file_error_of([&] { parse(file); });
}

std::string as_npy(const Array& array) {
  std::string file = npy_header(array);
  file.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  return file;
}

const std::string kFourBytes = "\x00\x00\x80\x3f"s;  // 1.0f

TEST(Npy, RoundTripsEveryTypeAndRank) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {}, {1}, {7}, {0}, {3, 5}, {2, 0, 4}, {2, 3, 5, 7}, std::vector<std::int64_t>(64, 1)};
  for (const DType dtype : all_dtypes()) {
    if (dtype == DType::bfloat16) continue;  // is told what it is
    for (const auto& shape : shapes) {
      const Array array = counting_array(dtype, shape);
      EXPECT_EQ(parse(as_npy(array)), array) << dtype_name(dtype) << " " << shape_text(shape);
    }
  }
}

TEST(Npy, HeaderIsVersionOneAndAligned) {
  const std::string header = npy_header(counting_array(DType::float32, {2, 3}));
  EXPECT_EQ(header.size() % 64, 0U);
  EXPECT_EQ(header.substr(0, 8), "\x93NUMPY\x01\x00"s);
  EXPECT_EQ(static_cast<std::size_t>(header[8]) + 10, header.size());
  EXPECT_TRUE(contains(header, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
  EXPECT_EQ(header.back(), '\n');
}

TEST(Npy, ReadsVersionsOneTwoAndThree) {
  for (const int version : {1, 2, 3}) {
    const Array array = parse(file_with(header_of("<f4", "(1,)"), kFourBytes, version));
    EXPECT_EQ(values_of<float>(array), std::vector<float>{1.0F}) << version;
  }
  EXPECT_TRUE(
      contains(error_of(file_with(header_of("<f4", "(1,)"), kFourBytes, 4)), "version 4.0"));
}

TEST(Npy, ReadsFortranOrder) {
  // a[i][j][k] = 100 i + 10 j + k, written with i moving fastest
  std::string data;
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) data += static_cast<char>(100 * i + 10 * j + k);
    }
  }
  const Array array = parse(file_with(header_of("|u1", "(2, 3, 4)", "True"), data));
  std::vector<std::uint8_t> expected;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k)
        expected.push_back(static_cast<std::uint8_t>(100 * i + 10 * j + k));
    }
  }
  EXPECT_EQ(values_of<std::uint8_t>(array), expected);
  EXPECT_EQ(parse(file_with(header_of("|u1", "(2, 0, 4)", "True"), "")).numel(), 0);
}

TEST(Npy, ReadsHeadersOfOtherWriters) {
  EXPECT_EQ(
      parse(file_with("{\"shape\":(1L,),\"fortran_order\":False,\"descr\":\"<f4\"}", kFourBytes))
          .shape,
      std::vector<std::int64_t>{1});
  EXPECT_EQ(parse(file_with(header_of("<u1", "(4,)"), kFourBytes)).dtype, DType::uint8);
  EXPECT_EQ(parse(file_with(header_of("<f4", "(1, 1)"), kFourBytes)).shape,
            (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(parse(file_with(header_of("<f4", "()"), kFourBytes)).numel(), 1);
}

TEST(Npy, RefusesWhatIsNoNpyFile) {
  EXPECT_TRUE(contains(error_of(""), "x.npy: is too short"));
  EXPECT_TRUE(contains(error_of("\x93NUMPY\x01"), "too short"));
  EXPECT_TRUE(contains(error_of("PK\x03\x04 an archive of arrays"), "is not an .npy file"));
}

TEST(Npy, RefusesEveryTruncation) {
  const std::string file = as_npy(counting_array(DType::float32, {2, 3}));
  for (std::size_t length = 0; length < file.size(); ++length) {
    EXPECT_NE(error_of(file.substr(0, length)), "") << length;
  }
  EXPECT_TRUE(contains(error_of(file.substr(0, file.size() - 1)),
                       "float32 (2, 3) needs 24 bytes, and 23 follow"));
  EXPECT_TRUE(contains(error_of(file + "x"), "needs 24 bytes, and 25 follow"));
}

TEST(Npy, RefusesHugeHeadersAndShapes) {
  const std::string huge_length = "\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr'"s;
  EXPECT_TRUE(contains(error_of(huge_length), "4294967295 bytes"));
  for (const std::string shape : {"(9223372036854775807,)", "(4294967296, 4294967296)",
                                  "(2305843009213693952,)", "(0, 4294967296, 4294967296)"}) {
    EXPECT_TRUE(contains(error_of(file_with(header_of("<f4", shape), "")), "more than 2^63"))
        << shape;
  }
  EXPECT_TRUE(contains(error_of(file_with(header_of("<f4", "(1152921504606846976,)"), kFourBytes)),
                       "needs 4611686018427387904 bytes, and 4 follow"));
  EXPECT_TRUE(contains(error_of(file_with(header_of("<f4", "(9223372036854775808,)"), "")),
                       "expected a size below 2^63"));
  EXPECT_TRUE(
      contains(error_of(file_with(header_of("<f4", "(-1,)"), "")), "expected a size below 2^63"));
  std::string ones = "(";
  for (int axis = 0; axis < 70; ++axis) ones += "1,";
  EXPECT_TRUE(
      contains(error_of(file_with(header_of("<f4", ones + ")"), kFourBytes)), "more than 64 axes"));
}

TEST(Npy, RefusesOtherTypes) {
  EXPECT_TRUE(contains(error_of(file_with(header_of(">f4", "(1,)"), kFourBytes)), "big-endian"));
  for (const std::string descr : {"<c8", "<f16", "<i2", "|S4", "|O", "f4", "=f4", "", "<"}) {
    EXPECT_TRUE(contains(error_of(file_with(header_of(descr, "(1,)"), kFourBytes)),
                         "elements of type \"" + descr + "\""))
        << descr;
  }
  const std::string fields = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}";
  EXPECT_TRUE(contains(error_of(file_with(fields, kFourBytes)), "elements of several fields"));
}

TEST(Npy, RefusesMalformedHeaders) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "expected '{'"},
      {"{}", "is missing"},
      {"{'descr': '<f4', 'shape': (1,)}", "is missing"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "appears twice"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "\"more\" is unknown"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "True or False"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1)}", "expected the tuple (n,)"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': [1]}", "expected '('"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,,)}", "a size"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}", "expected ')'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", "expected '}'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "\"x\" follows"},
      {"{'descr: ", "does not end"},
  };
  for (const auto& [header, what] : cases) {
    EXPECT_TRUE(contains(error_of(file_with(header, kFourBytes)), what)) << header;
  }
}

TEST(Npy, MessagesCarryNoControlBytes) {
  const std::string message = error_of(file_with(header_of("\x1b[2J\xff", "(1,)"), kFourBytes));
  EXPECT_TRUE(contains(message, "\\x1b[2J\\xff"));
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  const std::string long_text(5000, 'y');
  EXPECT_LT(error_of(file_with(header_of(long_text, "(1,)"), kFourBytes)).size(), 400U);
}

TEST(Npy, RefusesBoolsOtherThanZeroAndOne) {
  EXPECT_TRUE(contains(error_of(file_with(header_of("|b1", "(2, 2)"), "\x01\x00\x02\x01"s)),
                       "the bool at (1, 0) is 2"));
}

TEST(Npy, Bfloat16IsTwoBytesWithoutAType) {
  const Array array = counting_array(DType::bfloat16, {2, 3});
  const std::string file = as_npy(array);
  EXPECT_TRUE(contains(file, "'descr': '<V2'"));
  EXPECT_TRUE(contains(error_of(file),
                       "two-byte elements without a type (\"<V2\"), as ml_dtypes writes "
                       "bfloat16: --dtype bf16"));
  MemorySource source("x.npy", as_file(file));
  EXPECT_EQ(read_npy(source, TwoBytes::bfloat16), array);
}

class NpyFile : public FolderTest {};

TEST_F(NpyFile, SavesAndLoads) {
  const Array array = counting_array(DType::float16, {3, 4, 5});
  save_npy(folder_ / "a.npy", array);
  EXPECT_EQ(load_npy(folder_ / "a.npy"), array);
  EXPECT_EQ(content_of(folder_ / "a.npy"), as_npy(array));
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(NpyFile, RefusesAnArrayLargerThanTheMachine) {
  const std::string file = file_with(header_of("|u1", "(4398046511104,)"), "");
  put(folder_ / "sparse.npy", file);
  std::error_code error;
  std::filesystem::resize_file(folder_ / "sparse.npy", file.size() + (std::uint64_t{1} << 42),
                               error);
  if (error) GTEST_SKIP() << "no sparse file of 4 TiB here: " << error.message();
  EXPECT_THROW(load_npy(folder_ / "sparse.npy"), OutOfMemory);
}

}  // namespace
}  // namespace tilewise::files
