#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <map>

#include "harness/case_captures.h"
#include "harness/case_text.h"
#include "problem/blocks.h"

namespace tilewise {
namespace {

using namespace case_text;

/// What parsing knows beyond the case itself: what was given, so that defaults can follow.
struct Parser {
  Case c;
  Given given;
};

constexpr const char *kBatch = "the batch size", *kQueries = "the number of queries";
constexpr const char *kKeys = "the number of keys", *kDimV = "the head dim of v";
constexpr const char *kView = "the view", *kType = "the type", *kFill = "the fill";

constexpr std::string_view kSizes = "bN, hN or hN/M, sN, qN, kN, dN, dvN";

template <class Value, std::size_t n>
Value read_word(const std::array<Word<Value>, n>& words, std::string_view text) {
  const Value* value = find(words, text);
  if (value == nullptr) throw "one of " + list(words);
  return *value;
}

Axes read_axes(std::string_view text) {
  constexpr std::string_view kLetters = "bhqk";
  const std::vector<std::string_view> parts = split(text, ',');
  const std::string help = "axes b,h,q,k (packed: h,q,k), each its letter or 1";
  if (parts.size() != 3 && parts.size() != 4) throw help;
  Axes axes{};
  const std::size_t first = 4 - parts.size();
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const bool letter = parts[n] == kLetters.substr(first + n, 1);
    if (!letter && parts[n] != "1") throw help;
    axes[first + n] = letter;
  }
  return axes;
}

bool read_view(std::string_view text, View& view, Given& given) {
  if (text != "step2" && text != "padded" && text != "expanded") return false;
  given.take(kView, text);
  view = *find(kLayouts, text);
  return true;
}

MaskCase read_mask(std::string_view text) {
  MaskCase mask;
  Given given;
  const std::vector<std::string_view> parts = split(text, ':');
  mask.axes = read_axes(parts[0]);
  for (std::size_t n = 1; n < parts.size(); ++n) {
    if (!read_view(parts[n], mask.view, given)) mask.hide.push_back(read_region(parts[n]));
  }
  return mask;
}

BiasCase read_bias(std::string_view text) {
  BiasCase bias;
  Given given;
  const std::vector<std::string_view> parts = split(text, ':');
  bias.axes = read_axes(parts[0]);
  for (std::size_t n = 1; n < parts.size(); ++n) {
    const std::string_view part = parts[n];
    const std::size_t at = part.find('@');
    if (const DType* dtype = find(kDTypes, part)) {
      given.take(kType, part);
      bias.dtype = *dtype;
    } else if (at != std::string_view::npos) {
      BiasCase::Override over;
      over.lowest = part.substr(0, at) == "min";
      if (!over.lowest) over.value = read_number(part.substr(0, at));
      over.region = read_region(part.substr(at + 1));
      bias.overrides.push_back(over);
    } else if (!read_view(part, bias.view, given)) {
      given.take(kFill, part);
      bias.fill = read_fill(part);
    }
  }
  return bias;
}

BlocksCase read_blocks(std::string_view text) {
  const std::string help =
      "blocks=ROWS,KEYS:AXES:DENSITY[:full][:row=N] with axes 1,1 b,1 1,h or b,h";
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() < 3) throw help;
  const std::vector<std::int64_t> sizes = read_integers(parts[0]);
  const std::vector<std::string_view> axes = split(parts[1], ',');
  if (sizes.size() != 2 || axes.size() != 2) throw help;
  if ((axes[0] != "b" && axes[0] != "1") || (axes[1] != "h" && axes[1] != "1")) throw help;
  BlocksCase blocks{sizes[0], sizes[1], axes[0] == "b", axes[1] == "h", read_number(parts[2])};
  if (!(blocks.density >= 0.0 && blocks.density <= 1.0)) throw std::string("a density from 0 to 1");
  Given given;
  for (std::size_t n = 3; n < parts.size(); ++n) {
    given.take(std::string(parts[n].substr(0, parts[n].find('='))), parts[n]);
    if (parts[n] == "full") {
      blocks.full_flags = true;
    } else if (parts[n].starts_with("row=")) {
      blocks.dense_row = read_integer(parts[n].substr(4));
    } else {
      throw help;
    }
  }
  return blocks;
}

PackedCase read_packed(std::string_view text) {
  const std::string help =
      "packed=Q,Q,.../K,K,... (/K is optional), then optionally :tail=Q,K :int64 :max";
  PackedCase packed;
  const std::vector<std::string_view> parts = split(text, ':');
  const std::vector<std::string_view> sides = split(parts[0], '/');
  if (sides.size() > 2) throw help;
  packed.q_lengths = read_integers(sides.front());
  packed.k_lengths = read_integers(sides.back());
  if (packed.q_lengths.size() != packed.k_lengths.size()) throw help;
  Given given;
  for (std::size_t n = 1; n < parts.size(); ++n) {
    given.take(std::string(parts[n].substr(0, parts[n].find('='))), parts[n]);
    if (parts[n] == "int64") {
      packed.wide_offsets = true;
    } else if (parts[n] == "max") {
      packed.give_max = true;
    } else if (parts[n].starts_with("tail=")) {
      const std::vector<std::int64_t> tail = read_integers(parts[n].substr(5));
      if (tail.size() != 2) throw help;
      packed.tail_q = tail[0];
      packed.tail_k = tail[1];
    } else {
      throw help;
    }
  }
  return packed;
}

Poke read_poke(std::string_view text) {
  const std::string help =
      "poke=TENSOR:B,H,S,D:VALUE with TENSOR q, k, v or o (of dO), indices N, A-B or *";
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() != 3 || parts[0].size() != 1) throw help;
  Poke poke;
  poke.tensor = parts[0].front();
  if (std::string_view("qkvo").find(poke.tensor) == std::string_view::npos) throw help;
  const std::vector<std::string_view> axes = split(parts[1], ',');
  if (axes.size() != 4) throw help;
  for (std::size_t n = 0; n < 4; ++n) {
    if (axes[n] == "*") {
      poke.end[n] = -1;
      continue;
    }
    const std::size_t dash = axes[n].find('-');
    poke.begin[n] = read_integer(axes[n].substr(0, dash));
    poke.end[n] =
        dash == std::string_view::npos ? poke.begin[n] : read_integer(axes[n].substr(dash + 1));
  }
  poke.value = read_number(parts[2]);
  return poke;
}

void read_window(std::string_view text, Window& window) {
  const std::vector<std::string_view> parts = split(text, ',');
  if (parts.size() != 2) throw std::string("window=LEFT,RIGHT, each an integer or none");
  const auto side = [](std::string_view part) -> std::optional<std::int64_t> {
    if (part == "none") return std::nullopt;
    return read_integer(part);
  };
  window = {side(parts[0]), side(parts[1])};
}

void read_pass(std::string_view text, Case& c) {
  c.forward = c.backward = false;
  Given given;
  for (std::string_view part : split(text, ',')) {
    if (part != "fwd" && part != "bwd") throw std::string("fwd, bwd or fwd,bwd");
    given.take(std::string(part), part);
    (part == "fwd" ? c.forward : c.backward) = true;
  }
}

/// do=LAYOUT, do=FILL or do=LAYOUT:FILL.
void read_d_o(std::string_view text, Case& c) {
  Given given;
  for (std::string_view part : split(text, ':')) {
    if (const Layout* layout = find(kLayouts, part)) {
      given.take("the layout", part);
      c.d_o_layout = *layout;
    } else {
      given.take(kFill, part);
      c.d_o = read_fill(part);
    }
  }
}

/// A formula stands in quotes where it has blanks.
std::string_view unquoted(std::string_view text) {
  if (text.size() >= 2 && text.front() == '\'' && text.back() == '\'') {
    return text.substr(1, text.size() - 2);
  }
  if (text.empty() || text.find('\'') != std::string_view::npos) {
    throw std::string("a formula, quoted as '...' if it has blanks");
  }
  return text;
}

/// Where the first word ends: at a blank that no quotes hold.
std::size_t word_end(std::string_view line, std::string_view blanks) {
  bool quoted = false;
  for (std::size_t n = 0; n < line.size(); ++n) {
    if (line[n] == '\'') quoted = !quoted;
    if (!quoted && blanks.find(line[n]) != std::string_view::npos) return n;
  }
  return line.size();
}

using KeyReader = std::function<void(Parser&, std::string_view)>;

const std::map<std::string_view, KeyReader>& key_readers() {
  static const std::map<std::string_view, KeyReader> readers = {
      {"alibi",
       [](Parser& p, std::string_view text) {
         if (text != "h" && text != "bh" && text != "neg") throw std::string("h, bh or neg");
         p.c.alibi = text == "h"    ? Case::Alibi::per_head
                     : text == "bh" ? Case::Alibi::per_batch
                                    : Case::Alibi::negative;
       }},
      {"beyond",
       [](Parser& p, std::string_view text) {
         p.c.beyond_nan = text == "nan";
         if (!p.c.beyond_nan) p.c.beyond = read_fill(text);
       }},
      {"bias", [](Parser& p, std::string_view text) { p.c.bias = read_bias(text); }},
      {"blocks", [](Parser& p, std::string_view text) { p.c.blocks = read_blocks(text); }},
      {"captures",
       [](Parser& p, std::string_view text) { p.c.captures = read_captures(unquoted(text)); }},
      {"do", [](Parser& p, std::string_view text) { read_d_o(text, p.c); }},
      {"dropout", [](Parser& p, std::string_view text) { p.c.dropout.p = read_number(text); }},
      {"expect",
       [](Parser& p, std::string_view text) {
         if (text != "invalid" && text != "finite") throw std::string("invalid or finite");
         (text == "invalid" ? p.c.invalid : p.c.finite_only) = true;
       }},
      {"fill", [](Parser& p, std::string_view text) { p.c.q = p.c.k = p.c.v = read_fill(text); }},
      {"id", [](Parser& p, std::string_view text) { p.c.id = text; }},
      {"k", [](Parser& p, std::string_view text) { p.c.k = read_fill(text); }},
      {"layout", [](Parser& p, std::string_view text) { p.c.layout = read_word(kLayouts, text); }},
      {"lengths", [](Parser& p, std::string_view text) { p.c.key_lengths = read_integers(text); }},
      {"mask", [](Parser& p, std::string_view text) { p.c.mask = read_mask(text); }},
      {"mask_expr", [](Parser& p, std::string_view text) { p.c.mask_expression = unquoted(text); }},
      {"mod",
       [](Parser& p, std::string_view text) { p.c.score_mod = read_word(kScoreMods, text); }},
      {"offset", [](Parser& p, std::string_view text) { p.c.dropout.offset = read_seed(text); }},
      {"packed", [](Parser& p, std::string_view text) { p.c.packed = read_packed(text); }},
      {"paged",
       [](Parser& p, std::string_view text) {
         p.c.page_size = read_integer(text);
         if (p.c.page_size < 1) throw std::string("a page size above 0");
       }},
      {"pass", [](Parser& p, std::string_view text) { read_pass(text, p.c); }},
      {"poke", [](Parser& p, std::string_view text) { p.c.pokes.push_back(read_poke(text)); }},
      {"q", [](Parser& p, std::string_view text) { p.c.q = read_fill(text); }},
      {"scale", [](Parser& p, std::string_view text) { p.c.scale = read_number(text); }},
      {"score", [](Parser& p, std::string_view text) { p.c.score_expression = unquoted(text); }},
      {"seed", [](Parser& p, std::string_view text) { p.c.dropout.seed = read_seed(text); }},
      {"sink", [](Parser& p, std::string_view text) { p.c.sinks = read_fill(text); }},
      {"softcap", [](Parser& p, std::string_view text) { p.c.softcap = read_number(text); }},
      {"v", [](Parser& p, std::string_view text) { p.c.v = read_fill(text); }},
      {"window", [](Parser& p, std::string_view text) { read_window(text, p.c.window); }},
  };
  return readers;
}

const std::map<std::string_view, std::function<void(Case&)>>& flag_setters() {
  static const std::map<std::string_view, std::function<void(Case&)>> setters = {
      {"alibi", [](Case& c) { c.alibi = Case::Alibi::per_head; }},
      {"causal", [](Case& c) { c.causal = Causal::bottom_right; }},
      {"causal_top_left", [](Case& c) { c.causal = Causal::top_left; }},
      {"deterministic", [](Case& c) { c.deterministic = true; }},
      {"dlse", [](Case& c) { c.d_lse = true; }},
      {"nolse", [](Case& c) { c.lse = false; }},
      {"rank3", [](Case& c) { c.rank3 = true; }},
      {"sink", [](Case& c) { c.sinks = Fill{}; }},
      {"tf32", [](Case& c) { c.precision = Precision::tf32; }},
      {"refined", [](Case& c) { c.precision = Precision::refined; }},
  };
  return setters;
}

template <class Map>
std::string keys_of(const Map& map, std::string_view suffix) {
  std::string all;
  for (const auto& [key, value] : map) {
    all += (all.empty() ? "" : ", ") + std::string(key) + std::string(suffix);
  }
  return all;
}

std::string accepted_words() {
  return std::string(kSizes) + "; " + list(kDTypes) + "; " + keys_of(flag_setters(), "") + "; " +
         keys_of(key_readers(), "=");
}

void read_size(std::string_view word, Parser& p) {
  const std::size_t letters = word.find_first_of("0123456789");
  const std::string_view letter = word.substr(0, letters);
  const std::string_view text =
      letters == std::string_view::npos ? std::string_view() : word.substr(letters);
  Case& c = p.c;
  if (text.empty() || letter.empty()) throw accepted_words();
  if (letter == "h") {
    p.given.take("the heads", word);
    const std::vector<std::string_view> both = split(text, '/');
    if (both.size() > 2) throw std::string("hN or hN/M");
    c.heads_q = read_integer(both.front());
    c.heads_k = read_integer(both.back());
    return;
  }
  const std::int64_t size = read_integer(text);
  const auto set = [&](const char* what, std::int64_t& to) {
    p.given.take(what, word);
    to = size;
  };
  if (letter == "b") {
    set(kBatch, c.batch);
  } else if (letter == "s") {
    set(kQueries, c.seq_q);
    set(kKeys, c.seq_k);
  } else if (letter == "q") {
    set(kQueries, c.seq_q);
  } else if (letter == "k") {
    set(kKeys, c.seq_k);
  } else if (letter == "d") {
    set("the head dim", c.head_dim);
  } else if (letter == "dv") {
    set(kDimV, c.head_dim_v);
  } else {
    throw accepted_words();
  }
}

/// Notes what a word KEY=... gives.
void take_key(std::string_view key, std::string_view word, Given& given) {
  if (key == "poke") return;
  if (key == "alibi" || key == "sink") return given.take(std::string(key), word);
  const std::string name = std::string(key) + "=";
  if (key != "fill") return given.take(name, word);
  for (const char* of : {"q=", "k=", "v="}) given.take(of, word);
}
/// Notes what a word without a value gives.
void take_flag(std::string_view flag, Given& given) {
  std::string what(flag);
  if (flag == "tf32" || flag == "refined") what = "the precision";
  if (flag == "causal_top_left") what = "causal";
  given.take(what, flag);
}

void read_case_word(std::string_view word, Parser& p) {
  const std::size_t equals = word.find('=');
  if (equals != std::string_view::npos) {
    const auto reader = key_readers().find(word.substr(0, equals));
    if (reader == key_readers().end()) throw "one of " + keys_of(key_readers(), "=");
    take_key(reader->first, word, p.given);
    reader->second(p, word.substr(equals + 1));
    return;
  }
  if (const DType* dtype = find(kDTypes, word)) {
    p.given.take(kType, word);
    p.c.dtype = *dtype;
    return;
  }
  const auto setter = flag_setters().find(word);
  if (setter != flag_setters().end()) {
    take_flag(word, p.given);
    setter->second(p.c);
    return;
  }
  read_size(word, p);
}

/// Sizes that follow from others, and combinations that no tensors can express.
void finish(Parser& p) {
  Case& c = p.c;
  const auto fail = [](const std::string& text) { throw InvalidArgument("case: " + text); };
  if (!p.given.has(kDimV)) c.head_dim_v = c.head_dim;
  if (c.packed) {
    if (p.given.has(kBatch) || p.given.has(kQueries) || p.given.has(kKeys)) {
      fail("packed= excludes b, s, q and k, because it sets the batch and the lengths");
    }
    if (!c.key_lengths.empty()) fail("packed= and lengths= exclude each other");
    c.batch = static_cast<std::int64_t>(c.packed->q_lengths.size());
    c.seq_q = c.packed->tail_q;
    c.seq_k = c.packed->tail_k;
    const auto add = [&](std::int64_t length, std::int64_t& rows) {
      rows += length;
      if (std::abs(rows) > Tensor::kMaxElems) fail("packed= has more than 2^56 rows");
    };
    for (std::int64_t length : c.packed->q_lengths) add(length, c.seq_q);
    for (std::int64_t length : c.packed->k_lengths) add(length, c.seq_k);
    if (c.page_size > 0) give_pages(c);
    return;
  }
  if (!p.given.has(kQueries)) fail("the query length is missing: expected sN, qN or packed=");
  if (!p.given.has(kKeys)) c.seq_k = c.seq_q;
  if (c.mask && c.rank3) fail("rank3 and mask= exclude each other");
  if (!c.key_lengths.empty() && static_cast<std::int64_t>(c.key_lengths.size()) != c.batch) {
    fail("lengths= needs one length for each of the " + std::to_string(c.batch) + " batch entries");
  }
  if (c.page_size > 0 && c.key_lengths.empty()) fail("paged= needs lengths=");
}

}  // namespace

void give_pages(Case& c) {
  c.key_lengths = c.packed->k_lengths;
  c.packed->tail_k = 0;
  const std::int64_t longest =
      c.key_lengths.empty() ? 0 : *std::max_element(c.key_lengths.begin(), c.key_lengths.end());
  c.seq_k = round_up(longest, c.page_size);
}

Case parse_case(std::string_view line) {
  Parser parser;
  line = line.substr(0, line.find('#'));
  constexpr std::string_view kSpace = " \t\r\n";
  while (true) {
    const std::size_t begin = line.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) break;
    line.remove_prefix(begin);
    const std::string_view word = line.substr(0, word_end(line, kSpace));
    line.remove_prefix(word.size());
    try {
      read_case_word(word, parser);
    } catch (const std::string& expected) {
      throw InvalidArgument("case: word '" + std::string(word) + "': expected " + expected);
    }
  }
  finish(parser);
  return parser.c;
}

}  // namespace tilewise
