/// Toy tasks that layers are trained on, each a generator of sequences and answers.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tilewise::cli {

/// A batch: ids (batch, tokens) and a label for each sequence.
struct Examples {
  std::vector<std::int32_t> ids, labels;
};

struct Task {
  std::string name;
  std::int64_t vocabulary = 0, classes = 0;
  Examples (*draw)(std::int64_t batch, std::int64_t tokens, std::mt19937_64& random);
};

/// "needle": one token of a random sequence is one of 8 needles, and the last token asks which. It
/// never stands in the last eighth.
/// "listops": a nested expression such as [MAX 3 [MED 9 1 4] 0], right-aligned behind padding; the
/// answer is its value, a digit. After Nangia and Bowman 2018.
/// Throws BadInput for other names.
const Task& find_task(const std::string& name);

/// Throws BadInput for more tokens than a tensor may have.
void check_tokens(std::int64_t batch, std::int64_t tokens);

}  // namespace tilewise::cli
