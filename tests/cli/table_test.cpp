#include "cli/shell/table.h"

#include <gtest/gtest.h>

namespace tilewise::cli {
namespace {

Table sample() {
  Table table({{"name"}, {"seq"}, {"ms", 2}, {"error", Column::kScientific}});
  table.add({"flash", 256, 1.2345, 1.25e-7});
  table.add({"eager|x", 16384, "OOM", Value()});
  return table;
}

TEST(TableTest, MarkdownIsAlignedAndNumbersStandRight) {
  EXPECT_EQ(sample().markdown(),
            "| name     |   seq |   ms |   error |\n"
            "|:---------|------:|-----:|--------:|\n"
            "| flash    |   256 | 1.23 | 1.2e-07 |\n"
            "| eager\\|x | 16384 |  OOM |         |\n");
}

TEST(TableTest, LongTextsOfTheLastColumnArePaddedUpToFortyCharacters) {
  Table table({{"what"}, {"value"}});
  table.add({"a", std::string(60, 'x')});
  table.add({"b", "short"});
  const std::string expected =
      "| what | value                                    |\n"
      "|:-----|:-----------------------------------------|\n"
      "| a    | " +
      std::string(60, 'x') + " |\n" + "| b    | short                                    |\n";
  EXPECT_EQ(table.markdown(), expected);
}

TEST(TableTest, CsvQuotesWhatNeedsIt) {
  Table table({{"a"}, {"b"}});
  table.add({"x, \"y\"", true});
  EXPECT_EQ(table.csv(), "a,b\n\"x, \"\"y\"\"\",yes\n");
}

TEST(TableTest, JsonKeepsTypesAndOrder) {
  EXPECT_EQ(sample().json().dump(), R"([{"name":"flash","seq":256,"ms":1.2345,"error":1.25e-07},)"
                                    R"({"name":"eager|x","seq":16384,"ms":"OOM","error":null}])");
}

TEST(TableTest, SmallNumbersDoNotBecomeZero) {
  Table table({{"x", 3}});
  table.add({0.0002});
  table.add({0.0000213});
  table.add({0.0});
  EXPECT_EQ(table.csv(), "x\n0.0002\n0.00002\n0.000\n");
}

TEST(TableTest, ConstantsMoveOut) {
  Table table({{"device"}, {"seq"}, {"ms"}, {"note"}});
  table.add({"cpu", 1, 2, ""});
  table.add({"cpu", 2, 2, ""});
  std::vector<std::string> constant;
  const Table rest = table.without_constants({"ms"}, constant);
  EXPECT_EQ(rest.csv(), "seq,ms\n1,2\n2,2\n");
  EXPECT_EQ(constant, std::vector<std::string>{"device cpu"});
}

TEST(TableTest, CopiesAreDroppedOnlyWhenAllAgree) {
  Table table({{"seq_q"}, {"seq_k"}});
  table.add({1, 1});
  Table other = table;
  other.add({1, 2});
  table.drop_copy("seq_k", "seq_q");
  other.drop_copy("seq_k", "seq_q");
  EXPECT_EQ(table.csv(), "seq_q\n1\n");
  EXPECT_EQ(other.csv(), "seq_q,seq_k\n1,1\n1,2\n");
}

}  // namespace
}  // namespace tilewise::cli
