/// Which tokens a word attends to most: the rows of P, read out of any kernel by giving it the
/// identity as V, since O = P I = P.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/shell/table.h"
#include "tilewise/attention.h"

namespace tilewise::cli {

/// Tokens of the first sequence, "##" at the head of those that continue a word (WordPiece).
using Tokens = std::vector<std::string>;

/// From a file's metadata: a JSON list of strings. Throws BadInput.
Tokens tokens_from_json(const std::string& source, const std::string& text);

/// "birds@11": a word, and the head to look at; without one the mean over the heads.
struct Query {
  std::string word;
  std::optional<std::int64_t> head;
};
std::vector<Query> parse_queries(const std::string& text);

/// A row for each query: the word, the head, and the `top` words with most of its attention. Pieces
/// of a word are taken together: the mean of their rows, the sum of their columns. Throws BadInput
/// for a word that is not there or tokens that do not fit the tensors.
Table attended_table(const std::vector<Query>& queries, int top, const Tokens& tokens,
                     const ForwardTensors& tensors, const AttentionSpec& spec, const Choice& choice,
                     const Launch& launch);

}  // namespace tilewise::cli
