#include "cli/run/attended.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/files/error.h"
#include "cli/shell/args.h"
#include "cli/shell/failure.h"
#include "reference/elements.h"

namespace tilewise::cli {
namespace {

constexpr std::int64_t kColumns = 128;  ///< of P at a time: a head dim that every kernel takes

/// Tokens [begin, end) that make one word.
struct Word {
  std::string text;
  std::size_t begin = 0, end = 0;
};

std::vector<Word> words_of(const Tokens& tokens) {
  std::vector<Word> words;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool continues = tokens[i].rfind("##", 0) == 0 && tokens[i].size() > 2;
    if (continues && !words.empty()) {
      words.back().text += tokens[i].substr(2);
      words.back().end = i + 1;
    } else {
      words.push_back({tokens[i], i, i + 1});
    }
  }
  return words;
}

/// P of the first sequence, (Hq, Sq, Sk).
class Probabilities {
 public:
  Probabilities(const ForwardTensors& tensors, const AttentionSpec& spec, const Choice& choice,
                const Launch& launch)
      : heads_(tensors.q.sizes[1]), rows_(tensors.q.sizes[2]), keys_(tensors.k.sizes[2]) {
    values_.resize(static_cast<std::size_t>(heads_ * rows_ * keys_));
    for (std::int64_t begin = 0; begin < keys_; begin += kColumns) {
      read_columns(tensors, spec, choice, launch, begin, std::min(kColumns, keys_ - begin));
    }
  }

  double at(std::int64_t head, std::int64_t row, std::int64_t key) const {
    return values_[static_cast<std::size_t>((head * rows_ + row) * keys_ + key)];
  }
  std::int64_t heads() const { return heads_; }

 private:
  void read_columns(const ForwardTensors& tensors, const AttentionSpec& spec, const Choice& choice,
                    const Launch& launch, std::int64_t begin, std::int64_t columns) {
    const DType dtype = tensors.q.dtype;
    const auto bytes = [&](std::int64_t elems) {
      return static_cast<std::size_t>(elems * dtype_bytes(dtype));
    };
    std::vector<std::byte> v_bytes(bytes(keys_ * columns));
    Tensor v =
        Tensor::bhsd(v_bytes.data(), dtype, tensors.k.sizes[0], tensors.k.sizes[1], keys_, columns);
    v.strides[0] = v.strides[1] = 0;  // every head has the same V
    for (std::int64_t c = 0; c < columns; ++c) {
      reference::store(v, (begin + c) * columns + c, 1.0);
    }
    const std::int64_t batch = tensors.q.sizes[0];
    std::vector<std::byte> o_bytes(bytes(batch * heads_ * rows_ * columns));
    const Tensor o = Tensor::bhsd(o_bytes.data(), dtype, batch, heads_, rows_, columns);
    ForwardTensors probe = tensors;
    probe.v = v;
    probe.o = o;
    probe.lse = {};
    forward(probe, spec, launch, choice);
    for (std::int64_t row = 0; row < heads_ * rows_; ++row) {
      for (std::int64_t c = 0; c < columns; ++c) {
        values_[static_cast<std::size_t>(row * keys_ + begin + c)] =
            reference::load(o, row * columns + c);
      }
    }
  }

  std::int64_t heads_, rows_, keys_;
  std::vector<double> values_;
};

const Word& find_word(const std::vector<Word>& words, const std::string& text) {
  for (const Word& word : words) {
    if (word.text == text) return word;
  }
  throw BadInput(fmt::format("--attended '{}': no token contains this word", text));
}

double share(const Probabilities& p, std::int64_t head, const Word& from, const Word& to) {
  double sum = 0.0;
  for (std::size_t i = from.begin; i < from.end; ++i) {
    for (std::size_t j = to.begin; j < to.end; ++j) {
      sum += p.at(head, static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
    }
  }
  return sum / static_cast<double>(from.end - from.begin);
}

/// The attention that `from` pays to each word, by one head or on average.
std::vector<double> shares(const Probabilities& p, const Query& query, const Word& from,
                           const std::vector<Word>& words) {
  const std::int64_t first = query.head.value_or(0);
  const std::int64_t last = query.head.value_or(p.heads() - 1);
  std::vector<double> out(words.size());
  for (std::size_t w = 0; w < words.size(); ++w) {
    for (std::int64_t head = first; head <= last; ++head) out[w] += share(p, head, from, words[w]);
    out[w] /= static_cast<double>(last - first + 1);
  }
  return out;
}

}  // namespace

Tokens tokens_from_json(const std::string& source, const std::string& text) {
  const Value list = Value::parse(text, nullptr, false);
  const bool strings = list.is_array() && std::all_of(list.begin(), list.end(),
                                                      [](const Value& v) { return v.is_string(); });
  if (!strings)
    throw BadInput(fmt::format("{}: its tokens are not a JSON list of strings", source));
  Tokens tokens;
  for (const Value& token : list) tokens.push_back(token.get<std::string>());
  return tokens;
}

std::vector<Query> parse_queries(const std::string& text) {
  std::vector<Query> queries;
  for (const std::string& part : split_list("--attended", text)) {
    const std::size_t at = part.rfind('@');
    Query& query = queries.emplace_back();
    query.word = part.substr(0, at);
    if (at != std::string::npos) {
      query.head = parse_integer("--attended", part.substr(at + 1), 0);
    }
  }
  return queries;
}

Table attended_table(const std::vector<Query>& queries, int top, const Tokens& tokens,
                     const ForwardTensors& tensors, const AttentionSpec& spec, const Choice& choice,
                     const Launch& launch) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (spec.cu_seqlens_q.defined() || tensors.q.sizes[0] < 1) {
    throw BadInput("--attended: expected a dense batch");
  }
  if (tensors.q.sizes[2] != count || tensors.k.sizes[2] != count) {
    throw BadInput(fmt::format("--attended: there are {} tokens for {} queries and {} keys", count,
                               tensors.q.sizes[2], tensors.k.sizes[2]));
  }
  for (const Query& query : queries) {
    if (query.head.value_or(0) >= tensors.q.sizes[1]) {
      throw BadInput(fmt::format("--attended '{}@{}': expected a head from 0 to {}", query.word,
                                 *query.head, tensors.q.sizes[1] - 1));
    }
  }
  const std::vector<Word> words = words_of(tokens);
  std::vector<Column> columns = {{"word"}, {"head"}};
  for (int n = 1; n <= top; ++n) columns.push_back({fmt::format("attends to ({})", n)});
  Table table(columns);
  const Probabilities p(tensors, spec, choice, launch);
  for (const Query& query : queries) {
    const std::vector<double> weights = shares(p, query, find_word(words, query.word), words);
    std::vector<std::size_t> order(words.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
    std::vector<Value> line = {query.word, query.head ? Value(*query.head) : Value("mean")};
    for (std::size_t n = 0; n < static_cast<std::size_t>(top); ++n) {
      line.push_back(n < order.size() ? Value(fmt::format("{} {:.1f} %", words[order[n]].text,
                                                          100.0 * weights[order[n]]))
                                      : Value());
    }
    table.add(std::move(line));
  }
  return table;
}

}  // namespace tilewise::cli
