#include "block_map.h"

#include <string>
#include <vector>

#include "expression/block_map.h"
#include "expression/lower.h"
#include "expression/term.h"
#include "problem/problem.h"
#include "spec.h"

namespace tilewise::python {
namespace {

template <class T>
nb::bytes bytes_of(const std::vector<T>& values) {
  return nb::bytes(values.data(), values.size() * sizeof(T));
}

}  // namespace

nb::tuple block_map(const std::string& mask, const nb::tuple& captures, std::int64_t batch,
                    std::int64_t heads, std::int64_t rows, std::int64_t keys, std::int64_t block_q,
                    std::int64_t block_k) {
  Arrays arrays;
  const Expression expression = Expression::parse(mask, captured_tensors(arrays, captures));
  if (expression::type_of(expression) != expression::Type::boolean) {
    throw InvalidArgument("mask_mod gives a number: expected a boolean (True = visible)");
  }
  Problem problem;
  problem.batch = batch;
  problem.heads_q = problem.heads_k = heads;
  problem.seq_q = problem.total_q = rows;
  problem.seq_k = problem.total_k = keys;
  const expression::BlockMap map =
      expression::make_block_map(problem, expression::function_of(expression), block_q, block_k);
  return nb::make_tuple(map.batch, map.heads, bytes_of(map.row_offsets), bytes_of(map.block_index),
                        bytes_of(map.block_full));
}

}  // namespace tilewise::python
