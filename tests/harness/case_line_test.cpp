#include "harness/case_line.h"

#include <gtest/gtest.h>

#include "tilewise/error.h"

namespace tilewise {
namespace {

std::string error_of(const char* text) {
  try {
    CaseLine line(text, {"grid", "last_first"});
    line.take(&Case::seq_q);
    line.take(&Case::seq_k);
    line.expect_taken();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(CaseLine, HoldsWordsOfBothKinds) {
  CaseLine line("decode: two parts: b2 q3 k5 grid=4 bf16 last_first", {"grid", "last_first"});
  EXPECT_STREQ(line.name(), "decode: two parts");
  EXPECT_EQ(line.take(&Case::batch), 2);
  EXPECT_EQ(line.take(&Case::seq_q), 3);
  EXPECT_EQ(line.take(&Case::seq_k), 5);
  EXPECT_EQ(line.take(&Case::dtype), DType::bfloat16);
  EXPECT_EQ(line.own("grid"), 4);
  EXPECT_EQ(line.own("last_first"), 1);
  EXPECT_EQ(line.own("parts", 7), 7);
  line.expect_taken();
}

TEST(CaseLine, NamesTheWordAtFault) {
  EXPECT_EQ(error_of("a: q3"), "");
  EXPECT_NE(error_of("a: q3 causal").find("does not take"), std::string::npos);
  EXPECT_NE(error_of("a: q3 grid=x").find("'grid=x'"), std::string::npos);
  EXPECT_NE(error_of("a: q3 grid=1 grid=2").find("grid once"), std::string::npos);
  EXPECT_NE(error_of("a: q3 parts=1").find("'parts=1'"), std::string::npos);
  EXPECT_NE(error_of("q3").find("NAME: WORDS"), std::string::npos);
}

}  // namespace
}  // namespace tilewise
