#include "harness/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

namespace tilewise {
namespace {

void expect_error(const std::string& line, const std::string& part) {
  try {
    parse_case(line);
    FAIL() << line << ": no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Case, ReadsSizesAndDefaults) {
  const Case c = parse_case("b2 h8/2 q128 k256 d64 dv32 bf16");
  EXPECT_EQ(c.batch, 2);
  EXPECT_EQ(c.heads_q, 8);
  EXPECT_EQ(c.heads_k, 2);
  EXPECT_EQ(c.seq_q, 128);
  EXPECT_EQ(c.seq_k, 256);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.head_dim_v, 32);
  EXPECT_EQ(c.dtype, DType::bfloat16);
  const Case d = parse_case("q5 d7");
  EXPECT_EQ(d.seq_k, 5);
  EXPECT_EQ(d.head_dim_v, 7);
  EXPECT_EQ(d.dtype, DType::float32);
  EXPECT_TRUE(d.forward && d.backward && d.lse);
}

TEST(Case, ReadsEveryOption) {
  const Case c = parse_case(
      "b1 h4/2 s64 f16 causal window=64,none softcap=15 alibi=bh sink=2.5 dropout=0.1 seed=7 "
      "offset=18446744073709551615 "
      "bias=1,h,q,k:bf16:randn*2:-inf@some0.25:min@keys0-3@0:step2 "
      "mask=b,1,q,k:some0.3:rows2-5:beyond9 "
      "lengths=40 scale=0.3 layout=bshd do=step2:ones beyond=randn*9 poke=k:0,*,1-2,3:nan "
      "deterministic tf32 "
      "dlse nolse mod=wave pass=bwd id=C001 expect=finite");
  EXPECT_EQ(c.causal, Causal::bottom_right);
  EXPECT_EQ(c.window.left, 64);
  EXPECT_FALSE(c.window.right.has_value());
  EXPECT_EQ(c.softcap, 15.0);
  EXPECT_EQ(c.alibi, Case::Alibi::per_batch);
  EXPECT_EQ(c.sinks->shift, 2.5);
  EXPECT_EQ(c.dropout.p, 0.1);
  EXPECT_EQ(c.dropout.seed, 7U);
  EXPECT_EQ(c.dropout.offset, 18446744073709551615U);
  EXPECT_EQ(c.bias->dtype, DType::bfloat16);
  EXPECT_EQ(c.bias->axes, (Axes{false, true, true, true}));
  EXPECT_EQ(c.bias->fill.scale, 2.0);
  ASSERT_EQ(c.bias->overrides.size(), 2U);
  EXPECT_EQ(c.bias->overrides[0].value, -HUGE_VAL);
  EXPECT_EQ(c.bias->overrides[0].region.fraction, 0.25);
  EXPECT_TRUE(c.bias->overrides[1].lowest);
  EXPECT_EQ(c.bias->overrides[1].region.end, 3);
  EXPECT_EQ(c.bias->overrides[1].region.batch, 0);
  EXPECT_EQ(c.bias->view, Layout::step2);
  ASSERT_EQ(c.mask->hide.size(), 3U);
  EXPECT_EQ(c.mask->hide[1].kind, Region::Kind::rows);
  EXPECT_EQ(c.mask->hide[2].begin, 9);
  EXPECT_EQ(c.key_lengths, (std::vector<std::int64_t>{40}));
  EXPECT_EQ(c.scale, 0.3);
  EXPECT_EQ(c.layout, Layout::bshd);
  EXPECT_EQ(c.d_o_layout, Layout::step2);
  EXPECT_EQ(c.d_o.shift, 1.0);
  EXPECT_FALSE(c.beyond_nan);
  ASSERT_EQ(c.pokes.size(), 1U);
  EXPECT_EQ(c.pokes[0].end[1], -1);
  EXPECT_EQ(c.pokes[0].end[2], 2);
  EXPECT_TRUE(c.deterministic && c.d_lse && c.finite_only && c.backward);
  EXPECT_FALSE(c.lse || c.forward || c.invalid);
  EXPECT_EQ(c.precision, Precision::tf32);
  EXPECT_EQ(c.score_mod, Case::ScoreModKind::wave);
  EXPECT_EQ(c.id, "C001");
}

TEST(Case, ReadsPackedPagedAndBlocks) {
  const Case packed = parse_case("packed=76,34,146/1,0,1:tail=3,5:int64:max h2 d32");
  EXPECT_EQ(packed.batch, 3);
  EXPECT_EQ(packed.seq_q, 76 + 34 + 146 + 3);
  EXPECT_EQ(packed.seq_k, 2 + 5);
  EXPECT_TRUE(packed.packed->wide_offsets && packed.packed->give_max);
  EXPECT_EQ(parse_case("packed=5,6").packed->k_lengths, (std::vector<std::int64_t>{5, 6}));
  const Case paged = parse_case("b2 q1 k64 lengths=64,3 paged=16 pass=fwd");
  EXPECT_EQ(paged.page_size, 16);
  const Case both = parse_case("packed=3,9,1/40,0,12:max h2 d32 paged=16 pass=fwd");
  EXPECT_EQ(both.seq_q, 13);
  EXPECT_EQ(both.seq_k, 48);  // the pages of the longest
  EXPECT_EQ(both.key_lengths, (std::vector<std::int64_t>{40, 0, 12}));
  EXPECT_EQ(format_case(both), "packed=3,9,1/40,0,12:max h2 d32 f32 paged=16 pass=fwd");
  const Case blocks = parse_case("b2 h2 s64 blocks=16,32:b,1:0.5:full");
  EXPECT_EQ(blocks.blocks->block_k, 32);
  EXPECT_TRUE(blocks.blocks->per_batch && blocks.blocks->full_flags);
  EXPECT_FALSE(blocks.blocks->per_head);
}

TEST(Case, ReadsFills) {
  const auto fill = [](const std::string& text) { return parse_case("s4 q=" + text).q; };
  EXPECT_EQ(fill("randn*3"), (Fill{Fill::Kind::randn, 3.0, 0.0}));
  EXPECT_EQ(fill("randn*0.2+0.4"), (Fill{Fill::Kind::randn, 0.2, 0.4}));
  EXPECT_EQ(fill("sign*4.9956e8-1"), (Fill{Fill::Kind::sign, 4.9956e8, -1.0}));
  EXPECT_EQ(fill("iota+1"), (Fill{Fill::Kind::iota, 1.0, 1.0}));
  EXPECT_EQ(fill("-64"), (Fill{Fill::Kind::zeros, 0.0, -64.0}));
  EXPECT_EQ(fill("zeros"), (Fill{Fill::Kind::zeros, 0.0, 0.0}));
  EXPECT_EQ(fill("eye").kind, Fill::Kind::eye);
}

TEST(Case, ErrorsNameTheWordAndWhatIsAccepted) {
  expect_error("s4 colour=red", "'colour=red': expected one of alibi=, beyond=");
  expect_error("s4 purple", "'purple'");
  expect_error("s4 purple", "bf16");
  expect_error("s4 window=3", "'window=3': expected window=LEFT,RIGHT");
  expect_error("s4 layout=diagonal", "bhsd, bshd");
  expect_error("s4 q=randnn", "expected a fill");
  expect_error("s4 softcap=ten", "a number instead of 'ten'");
  expect_error("bX s4", "'bX'");
  expect_error("b2.5 s4", "an integer instead of '2.5'");
  expect_error("s4 mask=b,q", "axes b,h,q,k");
  expect_error("s4 mask=1,1,q,k:everywhere", "expected a region");
  expect_error("s4 mask=1,1,q,k:rows9-3", "0 <= A <= B");
  expect_error("s4 poke=q:1:2", "poke=TENSOR");
  expect_error("s4 pass=up", "fwd, bwd or fwd,bwd");
  expect_error("s4 bias=1,1,q,k:colour", "expected a fill");
  expect_error("b2 d4", "query length is missing");
  expect_error("s4 score=", "a formula");
  expect_error("s4 score='i - j", "a formula");
  expect_error("s4 captures='t'", "NAME:TYPE[SIZE,...]");
  expect_error("s4 captures='t:f31[2]'", "NAME:TYPE[SIZE,...]");
  expect_error("s4 captures='t:f32[1,1,1,1,1]'", "at most 4 axes");
  expect_error("b2 s4 lengths=1", "one length for each of the 2");
  expect_error("packed=3,4 s4", "packed=");
  expect_error("packed=3,4/1", "packed=Q,Q");
  std::string many = "packed=72057594037927936";
  for (int n = 0; n < 200; ++n) many += ",72057594037927936";
  expect_error(many, "more than 2^56 rows");
  expect_error("b1 s4 paged=4", "lengths=");
  expect_error("s99999999999999999999", "an integer instead of");
  expect_error("s9223372036854775807", "an integer within 2^56 of 0");
}

TEST(Case, GivesEachThingOnce) {
  expect_error("s1 s2", "word 's2': expected one word for the number of queries, and 's1' is one");
  expect_error("s1 k2", "word 'k2': expected one word for the number of keys, and 's1' is one");
  expect_error("q1 k2 q1", "word 'q1'");
  expect_error("b1 s4 b1", "the batch size, and 'b1'");
  expect_error("h2 s4 h2/1", "the heads, and 'h2'");
  expect_error("s4 d8 d16", "the head dim, and 'd8'");
  expect_error("s4 dv8 dv16", "the head dim of v, and 'dv8'");
  expect_error("s4 f32 bf16", "the type, and 'f32'");
  expect_error("s4 causal causal_top_left", "causal, and 'causal'");
  expect_error("s4 tf32 refined", "the precision, and 'tf32'");
  expect_error("s4 nolse nolse", "nolse, and 'nolse'");
  expect_error("s4 alibi alibi=bh", "alibi, and 'alibi'");
  expect_error("s4 sink=2 sink", "sink, and 'sink=2'");
  expect_error("s4 scale=1 scale=2", "scale=, and 'scale=1'");
  expect_error("s4 fill=ones k=randn", "k=, and 'fill=ones'");
  expect_error("s4 pass=fwd,fwd", "fwd, and 'fwd'");
  expect_error("s4 do=bshd:sbhd", "the layout, and 'bshd'");
  expect_error("s4 do=ones:zeros", "the fill, and 'ones'");
  expect_error("s4 mask=1,1,q,k:step2:padded", "the view, and 'step2'");
  expect_error("s4 bias=1,1,q,k:bf16:f16", "the type, and 'bf16'");
  expect_error("s4 bias=1,1,q,k:ones:zeros", "the fill, and 'ones'");
  expect_error("s4 blocks=16,16:1,1:0.5:row=1:row=2", "row, and 'row=1'");
  expect_error("packed=3,4:max:max", "max, and 'max'");
  const Case c = parse_case("s4 mask=1,1,q,k:rows1:rows2 poke=q:0,0,0,0:1 poke=q:0,0,1,0:1");
  EXPECT_EQ(c.mask->hide.size(), 2U);
  EXPECT_EQ(c.pokes.size(), 2U);
}

TEST(Case, FormatsWhatItReads) {
  EXPECT_EQ(format_case(parse_case("  h2 s16  # words\n")), "b1 h2 s16 d64 f32");
  EXPECT_EQ(format_case(parse_case("q=2 k=2 v=2 s3")), "b1 h1 s3 d64 f32 fill=2");
  EXPECT_EQ(format_case(parse_case("s3 window=none,-4 do=expanded:ones")),
            "b1 h1 s3 d64 f32 window=none,-4 do=expanded:ones");
}

TEST(Case, EveryLineOfEveryFileSurvivesTheRoundTrip) {
  int lines = 0;
  for (const char* file : {"smoke", "conformance", "block_lists", "three_way", "edge", "seeds",
                           "large", "expressions"}) {
    for (Case c : read_case_file(cases_dir(TILEWISE_CASES_DIR) + "/" + file + ".txt")) {
      Case again = parse_case(format_case(c));
      c.line = 0;
      EXPECT_EQ(format_case(again), format_case(c)) << file;
      const bool has_nan = format_case(c).find("nan") != std::string::npos;  // unlike itself
      EXPECT_TRUE(has_nan || again == c) << file << ": " << format_case(c);
      ++lines;
    }
  }
  EXPECT_GT(lines, 500);
}

TEST(Case, AReportsMaskFieldHoldsWhatChangesTheWork) {
  EXPECT_EQ(mask_field(parse_case("b2 h4 s4 d8 bf16 deterministic layout=bshd fill=zeros")),
            "none");
  const std::string formulas =
      "causal mask_expr='i - j < 3 | doc[j] == 1' alibi score='score - 1 + h' "
      "captures='doc:i32[Sk]=j // 2; t:f32[Hq,2]' dropout=0.25";
  const std::string words[] = {"causal window=3,0 mask=1,1,q,k", "causal_top_left blocks=2,2:1,1:1",
                               "scale=1e+20 softcap=20 alibi bias=1,h,q,k sink dropout=0.25 dlse",
                               formulas};
  for (const std::string& text : words) {
    const Case c = parse_case("s4 " + text);
    EXPECT_EQ(words_of_mask_field(mask_field(c)), text);
    EXPECT_EQ(parse_case("s4 " + words_of_mask_field(mask_field(c))), c);
  }
  EXPECT_EQ(mask_field(parse_case("packed=3,5 h2 d8 f32 causal")), "packed=3,5+causal");
}

TEST(CaseFile, ErrorsNameFileAndLine) {
  const std::string path =
      testing::TempDir() + "tilewise_cases_" + std::to_string(std::rand()) + ".txt";
  std::ofstream(path) << "# a comment\n\ns4 # fine\ns4 nonsense=1\n";
  try {
    read_case_file(path);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(path + ":4: case: word 'nonsense=1'"),
              std::string::npos)
        << error.what();
  }
  std::ofstream(path) << "\ns4\n\n  s5\r\n";
  const std::vector<Case> cases = read_case_file(path);
  ASSERT_EQ(cases.size(), 2U);
  EXPECT_EQ(cases[1].line, 4);
  EXPECT_EQ(cases[1].seq_q, 5);
  std::filesystem::remove(path);
  EXPECT_THROW(read_case_file(path), InvalidArgument);
}

TEST(RandomCase, ReadsBackAndDependsOnSeedAndIndexOnly) {
  std::set<std::string> lines;
  for (std::int64_t index = 0; index < 300; ++index) {
    const Case c = random_case(5, index);
    const std::string line = format_case(c);
    const bool has_nan = line.find("nan") != std::string::npos;  // unlike itself
    EXPECT_TRUE(has_nan || parse_case(line) == c) << line;
    EXPECT_EQ(format_case(parse_case(line)), line);
    EXPECT_EQ(format_case(random_case(5, index)), line);
    lines.insert(line);
  }
  EXPECT_GT(lines.size(), 295U);
  EXPECT_NE(format_case(random_case(6, 0)), format_case(random_case(5, 0)));
}

TEST(RandomCase, VariantsDifferInSizesAndValuesAlone) {
  std::set<std::string> lines;
  for (std::int64_t index = 0; index < 200; ++index) {
    const Case c = random_case(5, index, 20), first = random_case(5, index / 20 * 20, 20);
    lines.insert(format_case(c));
    EXPECT_EQ(c.dtype, first.dtype);
    EXPECT_EQ(c.head_dim, first.head_dim);
    EXPECT_EQ(c.head_dim_v, first.head_dim_v);
    EXPECT_EQ(c.packed.has_value(), first.packed.has_value());
    EXPECT_EQ(c.causal, first.causal);
    EXPECT_EQ(c.bias.has_value(), first.bias.has_value());
    EXPECT_EQ(c.mask.has_value(), first.mask.has_value());
    EXPECT_EQ(c.softcap > 0.0, first.softcap > 0.0);
    EXPECT_EQ(c.scale.value_or(1.0) > 1e-30, first.scale.value_or(1.0) > 1e-30);
  }
  EXPECT_GT(lines.size(), 190U);
}

/// Where the lengths of a random case come from.
std::string source_of(const Case& c) {
  if (c.packed) return c.packed->q_lengths == c.packed->k_lengths ? "packed" : "packed, own keys";
  if (c.page_size > 0) return "paged";
  if (!c.key_lengths.empty()) return "lengths";
  return c.seq_q == c.seq_k ? "equal" : "own";
}

std::string mask_of(const Case& c) {
  std::string form = c.causal == Causal::none       ? ""
                     : c.causal == Causal::top_left ? "top-left"
                                                    : "causal";
  if (c.window.left || c.window.right) form += " window";
  if (c.mask) form += " hidden";
  return c.blocks ? "blocks" : form;
}

std::string scores_of(const Case& c) {
  std::string scores = c.softcap > 0.0 ? "softcap" : "";
  if (c.alibi != Case::Alibi::none) scores += " alibi";
  if (c.bias) scores += " bias";
  if (c.sinks) scores += " sink";
  if (c.dropout.p > 0.0) scores += " dropout";
  return scores + (c.score_mod == Case::ScoreModKind::none ? "" : " mod");
}

TEST(RandomCase, DrawsCombinationsEvenly) {
  std::map<std::tuple<std::string, std::string, std::string>, int> triples;
  std::map<std::string, int> rare;
  constexpr int kDraws = 20000;
  for (std::int64_t index = 0; index < kDraws; ++index) {
    const Case c = random_case(7, index);
    ++triples[{mask_of(c), scores_of(c), source_of(c)}];
    if (c.heads_q == 0) ++rare["no heads"];
    if (c.heads_k > 0 && c.heads_q / c.heads_k > 4) ++rare["groups above 4"];
    if (c.bias && !c.bias->overrides.empty()) ++rare["huge bias"];
    if (!c.pokes.empty()) ++rare["dO of a hidden row"];
    if (c.packed && c.packed->tail_q > 0) ++rare["rows past the last sequence"];
  }
  // 9 forms of the mask, 9 of the scores, 6 sources here; block lists are never packed.
  EXPECT_EQ(triples.size(), 9U * 9 * 6 - 9 * 2);
  for (const auto& [triple, count] : triples) {
    const auto& [mask, scores, source] = triple;
    EXPECT_GT(count, kDraws / (9 * 9 * 7) / 3) << mask << ", " << scores << ", " << source;
  }
  EXPECT_EQ(rare.size(), 5U);
  for (const auto& [what, count] : rare) EXPECT_GT(count, kDraws / 200) << what;
}

TEST(RandomCase, WithAListIsTheSameProblemWithOne) {
  int dense_rows = 0;
  for (std::int64_t index = 0; index < 300; ++index) {
    Case c = random_list_case(5, index);
    // By their lines: a poke of NaN is unlike itself.
    EXPECT_EQ(format_case(parse_case(format_case(c))), format_case(c));
    ASSERT_TRUE(c.blocks.has_value());
    if (c.blocks->dense_row >= 0) ++dense_rows;
    c.blocks.reset();
    Case plain = random_case(5, index);
    plain.blocks.reset();
    EXPECT_EQ(format_case(c), format_case(plain));
  }
  EXPECT_GT(dense_rows, 20);
}

TEST(RandomCase, DrawsHeadDimsTo256AndUnequalOnes) {
  for (std::int64_t group = 0; group < 8; ++group) {
    std::set<std::tuple<DType, std::int64_t, std::int64_t>> types;
    int wide = 0;
    for (std::int64_t index = 512 * group; index < 512 * (group + 1); ++index) {
      const Case c = random_case(1, index);
      types.insert({c.dtype, c.head_dim, c.head_dim_v});
      if (c.head_dim > 128) ++wide;
      EXPECT_LE(std::max(c.head_dim, c.head_dim_v), 256);
      if (c.packed) continue;  // its rows are those of all sequences
      EXPECT_LE(c.batch * c.heads_q * c.seq_q * c.seq_k * (c.head_dim + c.head_dim_v),
                300 * 300 * 512);
    }
    EXPECT_LE(types.size(), 3U) << "kernels to compile";
    EXPECT_GT(wide, 512 / 5) << group;
  }
  int unequal = 0;
  for (std::int64_t index = 0; index < 512 * 100; index += 64) {
    const Case c = random_case(1, index);
    if (c.head_dim != c.head_dim_v) ++unequal;
  }
  EXPECT_GT(unequal, 100);
  EXPECT_LT(unequal, 300);
}

TEST(RandomCase, BiasesSpreadRowsAndHaveFaintFirstKeys) {
  int wide = 0, faint = 0;
  for (std::int64_t index = 0; index < 1000; ++index) {
    const Case c = random_case(2, index, 4);
    if (!c.bias) continue;
    EXPECT_EQ(format_case(parse_case(format_case(c))), format_case(c));
    if (c.bias->fill.scale > 1.0) ++wide;
    for (const BiasCase::Override& part : c.bias->overrides) {
      if (part.region.kind != Region::Kind::keys) continue;
      EXPECT_LT(part.region.end, std::max<std::int64_t>(1, c.seq_k));
      if (part.value < 0.0 && part.region.end == 63) ++faint;
    }
  }
  EXPECT_GT(wide, 30);
  EXPECT_GT(faint, 10);
}

/// Pairs that positions, lengths and the density of a list leave, and tiles of 128 rows or keys.
struct Extent {
  double pairs = 0.0;
  std::int64_t longest_q = 0, longest_k = 0;
};

Extent extent(const Case& c) {
  Extent e;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const auto n = static_cast<std::size_t>(b);
    const std::int64_t rows = c.packed ? c.packed->q_lengths[n] : c.seq_q;
    const std::int64_t keys = c.packed                ? c.packed->k_lengths[n]
                              : c.key_lengths.empty() ? c.seq_k
                                                      : c.key_lengths[n];
    double width = static_cast<double>(keys);
    if (c.window.left && c.window.right)
      width = std::min(width, static_cast<double>(*c.window.left + *c.window.right + 1));
    if (c.blocks) width *= c.blocks->density;
    e.pairs += static_cast<double>(rows * c.heads_q) * width;
    e.longest_q = std::max(e.longest_q, rows);
    e.longest_k = std::max(e.longest_k, c.packed || c.key_lengths.empty() ? keys : c.seq_k);
  }
  return e;
}

TEST(RandomCase, SparseOnesAreLongAndCostFewPairs) {
  std::map<std::string, int> kinds;
  constexpr int kDraws = 1000;
  for (std::int64_t index = 0; index < kDraws; ++index) {
    const Case c = random_sparse_case(5, index);
    const std::string line = format_case(c);
    EXPECT_EQ(format_case(parse_case(line)), line);
    const Extent e = extent(c);
    // A band that leaves a row less than one key, and the last document, may pass the bound.
    EXPECT_LE(e.pairs, 2.2 * (1 << 17)) << line;
    EXPECT_LE(std::max(c.seq_q * c.heads_q, c.seq_k * c.heads_k) * (c.head_dim + c.head_dim_v),
              std::int64_t{1} << 22)
        << line;
    const auto pairs_of_head = static_cast<double>(e.longest_q) * static_cast<double>(e.longest_k);
    if (pairs_of_head > 1 << 22) ++kinds["more pairs than two planes take"];
    if (c.window.left && c.window.right && e.longest_q >= 4096) ++kinds["a long band"];
    if (c.blocks && c.seq_q >= 4096) ++kinds["a long list"];
    if (!c.packed && c.seq_q < 17 && c.seq_k >= 4096) ++kinds["few queries"];
    if (c.page_size > 0 && c.seq_k >= 4096) ++kinds["many pages"];
    if (c.seq_k < 100 && c.seq_q >= 2048) ++kinds["few keys"];
    if (!c.packed && c.batch * c.heads_k > 132) ++kinds["more heads than multiprocessors"];
    if (c.packed && c.batch > 40) ++kinds["many documents"];
    if (c.packed && e.longest_q > 1000) ++kinds["a long document"];
    if (!c.key_lengths.empty() && c.page_size == 0 && c.seq_q > 1000) ++kinds["short lengths"];
  }
  EXPECT_EQ(kinds.size(), 10U);
  for (const auto& [kind, count] : kinds) EXPECT_GT(count, kDraws / 100) << kind;
}

TEST(RandomCase, LatentServedAndHalfBlockOnesAreOfTheirKind) {
  int paged = 0, masked = 0, different = 0;
  for (std::int64_t index = 0; index < 200; ++index) {
    const Case latent = random_latent_case(3, index, 4);
    EXPECT_EQ(format_case(parse_case(format_case(latent))), format_case(latent));
    EXPECT_EQ(latent.head_dim, 576);
    EXPECT_EQ(latent.head_dim_v, 512);
    EXPECT_EQ(latent.layout, Layout::latent);
    if (latent.page_size > 0) ++paged;
    if (latent.causal != Causal::none) ++masked;
    if (!latent.key_lengths.empty()) ++different;
    EXPECT_LE(random_served_case(3, index, 4).seq_q, 9);
    const Case half = random_half_block_case(3, index, 4);
    EXPECT_EQ(half.blocks->block_k, 64);
    EXPECT_EQ(half.blocks->block_q % 64, 0);
    EXPECT_EQ(format_case(parse_case(format_case(half))), format_case(half));
  }
  EXPECT_GT(paged, 50);
  EXPECT_GT(masked, 40);
  EXPECT_GT(different, paged);
}

}  // namespace
}  // namespace tilewise
