/// `plan --serve`: capacity and speed of a server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/machine/machines.h"
#include "cli/plan/plan_cells.h"
#include "cli/shell/table.h"

namespace tilewise::cli {

/// Properties of a model besides the shape of its attention.
struct Served {
  std::int64_t layers = 1;
  std::int64_t weight_bytes = 0;  ///< read once a step, and held beside the cache
  std::int64_t page_size = 16;    ///< where the cell names none
};

/// One step of decoding: a query for each of `batch` sequences over `context` keys.
struct Serving {
  std::int64_t batch = 0, context = 0;
  std::int64_t token_bytes = 0;  ///< of the cache, all layers
  std::int64_t cache_bytes = 0;  ///< of all sequences, whole pages
  std::int64_t step_bytes = 0;   ///< that a step reads at least: weights, and the keys it sees
  double tokens_per_s = 0.0;     ///< at most, at the bandwidth that the machine sustains
  double attention_ms = 0.0;     ///< predicted, of all layers
  std::string kernel;
  std::int64_t longest_context = 0, largest_batch = 0;  ///< that fit, the other as it is
};

/// The cell's heads, dims, type, batch and keys, decoded. Throws Unsupported when no kernel runs
/// it, BadInput for packed problems and those with lengths.
Serving serving_of(const Cell& cell, const Served& served, const Machine& machine,
                   std::int64_t limit_bytes);

/// All cells as a table.
std::string serve(const std::vector<Cell>& cells, const Served& served, const Machine& machine,
                  std::int64_t limit_bytes, Format format);

}  // namespace tilewise::cli
