#include "cli/files/safetensors.h"

#include "tests/files/files_testing.h"

namespace tilewise::files {
namespace {

using namespace std::string_literals;

std::string length_field(std::uint64_t bytes) {
  return {reinterpret_cast<const char*>(&bytes), sizeof(bytes)};
}

std::string file_with(const std::string& header, const std::string& body = "") {
  return length_field(header.size()) + header + body;
}

Safetensors parse(const std::string& file) {
  MemorySource source("x.safetensors", as_file(file));
  return read_safetensors(source);
}

std::string error_of(const std::string& file) {
  return file_error_of([&] { parse(file); });
}

std::string as_file_text(const Safetensors& content) {
  const SafetensorsPieces pieces = safetensors_pieces("x.safetensors", content);
  std::string file = pieces.header;
  for (const auto piece : pieces.tensors) {
    file.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return file;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

/// The error of a file whose only tensor, "a", has four bytes.
std::string error_of_tensor(const std::string& dtype, const std::string& shape,
                            const std::string& offsets) {
  return error_of(file_with("{" + entry("a", dtype, shape, offsets) + "}", "\x00\x00\x80\x3f"s));
}

TEST(Safetensors, RoundTripsEveryTypeRankAndMetadata) {
  Safetensors content;
  // Widest type first: the order in which the writer lays them down.
  for (const DType dtype : {DType::float64, DType::int64, DType::float32, DType::int32,
                            DType::bfloat16, DType::float16, DType::boolean, DType::uint8}) {
    for (const std::vector<std::int64_t>& shape :
         std::vector<std::vector<std::int64_t>>{{}, {7}, {3, 5}, {2, 3, 5, 7}}) {
      content.tensors.push_back(
          {std::string(dtype_name(dtype)) + shape_text(shape), counting_array(dtype, shape)});
    }
  }
  content.metadata = {{"tokens", R"(["[CLS]", "\"", "é"])"}, {"", ""}};
  EXPECT_EQ(parse(as_file_text(content)), content);
}

TEST(Safetensors, RoundTripsNothing) {
  EXPECT_EQ(parse(as_file_text({})), Safetensors{});
  EXPECT_EQ(parse(file_with("{}")), Safetensors{});
}

TEST(Safetensors, ReadsEmptyTensors) {
  const Safetensors content = parse(file_with("{" + entry("b", "F32", "[1]", "[0,4]") + "," +
                                                  entry("end", "F32", "[0]", "[4,4]") + "," +
                                                  entry("begin", "F32", "[3,0]", "[0,0]") + "}",
                                              "\x00\x00\x80\x3f"s));
  ASSERT_EQ(content.tensors.size(), 3U);
  EXPECT_EQ(content.find("begin")->numel(), 0);
  EXPECT_EQ(content.find("end")->shape, std::vector<std::int64_t>{0});
  EXPECT_EQ(values_of<float>(*content.find("b")), std::vector<float>{1.0F});
  EXPECT_EQ(parse(as_file_text(content)), content);
}

TEST(Safetensors, FindsByName) {
  const Safetensors content{{{"q", counting_array(DType::float32, {2})}}, {}};
  EXPECT_EQ(content.find("q"), &content.tensors[0].array);
  EXPECT_EQ(content.find("k"), nullptr);
}

TEST(Safetensors, WritesAlignedTensors) {
  const Safetensors content{{{"mask", counting_array(DType::boolean, {3})},
                             {"q", counting_array(DType::float32, {2})},
                             {"x", counting_array(DType::float64, {1})}},
                            {{"layout", "BHSD"}}};
  const SafetensorsPieces pieces = safetensors_pieces("x", content);
  EXPECT_EQ(pieces.header.size() % 8, 0U);
  EXPECT_TRUE(contains(pieces.header, R"({"__metadata__":{"layout":"BHSD"},"x":{"dtype":"F64",)"
                                      R"("shape":[1],"data_offsets":[0,8]},"q":{"dtype":"F32",)"
                                      R"("shape":[2],"data_offsets":[8,16]},"mask":)"
                                      R"({"dtype":"BOOL","shape":[3],"data_offsets":[16,19]}})"));
}

TEST(Safetensors, RefusesToWriteWhatCannotBeRead) {
  const Array array = counting_array(DType::uint8, {1});
  const auto error = [](const Safetensors& content) {
    return file_error_of([&] { safetensors_pieces("o.safetensors", content); });
  };
  EXPECT_TRUE(contains(error({{{"a", array}, {"a", array}}, {}}), "o.safetensors: two tensors"));
  EXPECT_TRUE(contains(error({{{"__metadata__", array}}, {}}), "two tensors"));
  EXPECT_TRUE(contains(error({{{"\xff", array}}, {}}), "not UTF-8"));
  EXPECT_TRUE(contains(error({{}, {{"a", "\xff"}}}), "not UTF-8"));
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file =
      as_file_text({{{"q", counting_array(DType::float32, {2, 3})}}, {{"a", "b"}}});
  for (std::size_t length = 0; length < file.size(); ++length) {
    EXPECT_NE(error_of(file.substr(0, length)), "") << length;
  }
  EXPECT_TRUE(contains(error_of(""), "x.safetensors: is too short"));
  EXPECT_TRUE(contains(error_of(file.substr(0, file.size() - 1)), "bytes 0 to 24 exceed the 23"));
  EXPECT_TRUE(contains(error_of(file + "x"), "its tensors have 24 bytes, and 25 follow"));
}

TEST(Safetensors, RefusesHugeHeaders) {
  EXPECT_TRUE(contains(error_of(length_field(std::uint64_t{1} << 60) + "{}"),
                       "declares a header of 1152921504606846976 bytes: expected at most 2"));
  EXPECT_TRUE(contains(error_of(length_field(~std::uint64_t{0}) + "{}"), "18446744073709551615"));
  std::string too_long;
  too_long.resize(100'000'008, ' ');
  EXPECT_TRUE(contains(error_of(length_field(100'000'001) + too_long), "at most 100000000"));
}

TEST(Safetensors, RefusesHugeShapes) {
  EXPECT_TRUE(contains(error_of_tensor("F32", "[9223372036854775808]", "[0,4]"), "below 2^63"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[9223372036854775807]", "[0,4]"), "more than 2^63"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[4294967296,4294967296]", "[0,4]"), "2^63"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[0,4294967296,4294967296]", "[0,0]"), "2^63"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[1152921504606846976]", "[0,4]"), "has 4"));
  EXPECT_TRUE(
      contains(error_of_tensor("F32", "[18446744073709551616]", "[0,4]"), "not an integer"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[-1]", "[0,4]"), "-1 is negative"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[1.0]", "[0,4]"), "not an integer"));
  std::string ones = "[1";
  for (int axis = 1; axis < 70; ++axis) ones += ",1";
  EXPECT_TRUE(contains(error_of_tensor("F32", ones + "]", "[0,4]"), "more than 64 axes"));
}

TEST(Safetensors, RefusesWrongOffsets) {
  EXPECT_TRUE(contains(error_of_tensor("F32", "[1]", "[4,0]"), "end before they start"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[2]", "[0,8]"), "bytes 0 to 8 exceed the 4"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[1]", "[18446744073709551612,18446744073709551615]"),
                       "exceed the 4"));
  EXPECT_TRUE(contains(error_of_tensor("F16", "[1]", "[0,4]"), "needs 2 bytes and has 4"));
  EXPECT_TRUE(contains(error_of_tensor("F16", "[1]", "[2,4]"), "leave a gap from byte 0"));
  EXPECT_TRUE(contains(error_of_tensor("F16", "[1]", "[0,2]"), "have 2 bytes, and 4 follow"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[1]", "[0]"), "expected two numbers"));
  EXPECT_TRUE(contains(error_of_tensor("F32", "[1]", "[0,4,4]"), "expected two numbers"));
  EXPECT_TRUE(contains(error_of(file_with("{" + entry("a", "U8", "[3]", "[0,3]") + "," +
                                              entry("b", "U8", "[2]", "[2,4]") + "}",
                                          "1234")),
                       "tensor \"b\", uint8 (2,): bytes 2 to 4 overlap"));
}

TEST(Safetensors, NamesTensorsOfOtherTypesAndTakesTheRest) {
  for (const std::string dtype : {"F8_E4M3", "I16", "U32", "f32", "C64"}) {
    const std::string file = file_with(
        "{" + entry("odd", dtype, "[3]", "[0,2]") + "," + entry("a", "U8", "[2]", "[2,4]") + "}",
        "1234");
    MemorySource source("x.safetensors", as_file(file));
    const Safetensors content = read_safetensors(source);
    EXPECT_EQ(content.unread, (std::map<std::string, std::string>{{"odd", dtype}}));
    ASSERT_EQ(content.tensors.size(), 1U);
    EXPECT_EQ(content.tensors[0].name, "a");
  }
  EXPECT_TRUE(contains(error_of_tensor("", "[1]", "[0,4]"), "tensor \"a\": the type is empty"));
}

TEST(Safetensors, RefusesDuplicateNames) {
  const std::string a = entry("a", "U8", "[1]", "[0,1]"), b = entry("a", "U8", "[1]", "[1,2]");
  EXPECT_TRUE(contains(error_of(file_with("{" + a + "," + b + "}", "12")), "\"a\" appears twice"));
  const std::string escaped = entry("\\u0061", "U8", "[1]", "[1,2]");
  EXPECT_TRUE(contains(error_of(file_with("{" + a + "," + escaped + "}", "12")), "appears twice"));
  EXPECT_TRUE(contains(error_of(file_with(R"({"__metadata__":{"x":"1","x":"2"}})")),
                       "the metadata contain \"x\" twice"));
  EXPECT_TRUE(contains(error_of(file_with(R"({"__metadata__":{},"__metadata__":{}})")),
                       "\"__metadata__\" appears twice"));
}

TEST(Safetensors, RefusesMalformedHeaders) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "does not begin with '{'"},
      {" {}", "does not begin with '{'"},
      {"[]", "does not begin with '{'"},
      {"{", "not valid JSON at byte"},
      {"{}{}", "not valid JSON"},
      {"{}\0{}"s, "zero byte"},
      {"{\"a\xff\":1}", "not valid JSON"},
      {R"({"a":1})", "unexpected number"},
      {R"({"a":null})", "unexpected null"},
      {R"({"a":true})", "unexpected bool"},
      {R"({"a":"F32"})", "unexpected string"},
      {R"({"a":[]})", "unexpected array"},
      {R"({"a":{}})", "tensor \"a\": \"dtype\", \"shape\" or \"data_offsets\" is missing"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "is missing"},
      {R"({"a":{"dtype":{}}})", "unexpected object"},
      {R"({"a":{"dtype":"F32","dtype":"F32"}})", "\"dtype\" is unknown or appears twice"},
      {R"({"a":{"strides":[1]}})", "\"strides\" is unknown"},
      {R"({"a":{"shape":1}})", "unexpected number"},
      {R"({"a":{"shape":[[1]]}})", "unexpected array"},
      {R"({"a":{"shape":["1"]}})", "unexpected string"},
      {R"({"a":{"shape":[{}]}})", "unexpected object"},
      {R"({"__metadata__":1})", "unexpected number"},
      {R"({"__metadata__":{"a":1}})", "unexpected number"},
      {R"({"__metadata__":{"a":{}}})", "unexpected object"},
  };
  for (const auto& [header, what] : cases) {
    EXPECT_TRUE(contains(error_of(file_with(header)), what)) << header;
  }
  EXPECT_TRUE(contains(error_of(file_with("{" + std::string(1'000'000, '['))), "not valid JSON"));
  EXPECT_EQ(parse(file_with("{}      ")), Safetensors{});  // the format's own padding
}

TEST(Safetensors, RefusesBoolsOtherThanZeroAndOne) {
  EXPECT_TRUE(
      contains(error_of(file_with("{" + entry("m", "BOOL", "[2]", "[0,2]") + "}", "\x01\x07")),
               "x.safetensors: tensor \"m\": the bool at (1,) is 7"));
}

TEST(Safetensors, MessagesCarryNoControlBytes) {
  const std::string message =
      error_of(file_with("{" + entry("\\u001b[2J", "F32", "[1]", "[0,0]") + "}"));
  EXPECT_TRUE(contains(message, "tensor \"\\x1b[2J\""));
}

class SafetensorsFile : public FolderTest {};

TEST_F(SafetensorsFile, SavesAndLoads) {
  const Safetensors content{
      {{"q", counting_array(DType::bfloat16, {2, 3})}, {"k", counting_array(DType::bfloat16, {4})}},
      {{"layout", "BSHD"}}};
  save_safetensors(folder_ / "a.safetensors", content);
  EXPECT_EQ(load_safetensors(folder_ / "a.safetensors"), content);
  EXPECT_EQ(content_of(folder_ / "a.safetensors"), as_file_text(content));
  EXPECT_EQ(files_in_folder(), 1U);
}

}  // namespace
}  // namespace tilewise::files
