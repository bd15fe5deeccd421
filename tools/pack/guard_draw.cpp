#include "guard_draw.h"

#include <algorithm>
#include <vector>

#include "expression/lower.h"
#include "tilewise/expression.h"

namespace tilewise::cuda {

/// A function of each kind: units are told apart by their config, which does not have the text.
struct ProblemDraw::Functions {
  explicit Functions(float* values)
      : table{Captured("table", Tensor::contiguous(values, DType::float32, {4, 8}))},
        score(Expression::parse("20*tanh(score/20) + table[i // 4096, h]", table)),
        mask(Expression::parse("j <= i & i - j < 1000", {})) {}
  std::vector<Captured> table;
  Expression score, mask;
};

ProblemDraw::ProblemDraw(std::uint64_t seed)
    : numbers_(seed), functions_(std::make_unique<Functions>(reals_.data())) {}
ProblemDraw::~ProblemDraw() = default;

Problem ProblemDraw::problem() {
  Problem p;
  p.dtype = pick(std::array{DType::bfloat16, DType::float16});
  p.device = {DeviceType::cuda, 0};
  p.head_dim = p.head_dim_v = pick(std::array<std::int64_t, 5>{64, 96, 128, 192, 256});
  p.batch = 4;
  p.heads_q = 8;
  p.heads_k = p.heads_q / pick(std::array<std::int64_t, 2>{1, 4});
  p.seq_q = p.total_q = pick(std::array<std::int64_t, 5>{1, 100, 1024, 4096, 16384});
  p.seq_k = p.total_k = std::max<std::int64_t>(p.seq_q, 1024);
  p.scale = 0.1F;
  p.deterministic = below(2) == 1;
  set_mask(p);
  set_scores(p);
  set_lengths(p);
  return p;
}

/// Sequences are not packed, and the backward takes the head dim with any option.
Problem ProblemDraw::narrow() {
  Problem p = problem();
  while (p.packed || p.head_dim > 128) p = problem();
  return p;
}

Problem ProblemDraw::listed() {
  Problem p = narrow();
  set_list(p);
  return p;
}

Problem ProblemDraw::paged() {
  Problem p = problem();
  set_pages(p);
  return p;
}

Problem ProblemDraw::mma() {
  Problem p = problem();
  p.dtype = pick(std::array{DType::bfloat16, DType::float16, DType::float32});
  p.head_dim = p.head_dim_v = pick(std::array<std::int64_t, 6>{32, 64, 96, 128, 256, 512});
  if (below(2) == 1) set_pairs(p);
  if (below(2) == 1) p.dropout.p = 0.1;
  if (below(2) == 1) set_list(p);
  if (below(4) == 1) set_functions(p);
  return p;
}

Problem ProblemDraw::expressed() {
  Problem p = narrow();
  p.softcap = 0.0;
  p.alibi_slopes = {};
  set_functions(p);
  return p;
}

void ProblemDraw::set_mask(Problem& p) {
  const std::size_t kind = below(3);
  if (kind > 0) p.causal = Causal::bottom_right, p.right = 0;
  if (kind == 2) p.left = 1023;
}

void ProblemDraw::set_scores(Problem& p) {
  if (below(2) == 1) p.softcap = 30.0;
  if (below(2) == 1) {
    p.alibi_slopes = Tensor::contiguous(reals_.data(), DType::float32, {8}, p.device);
  }
}

void ProblemDraw::set_lengths(Problem& p) {
  const std::size_t kind = below(3);
  if (kind == 1) set_key_lengths(p);
  if (kind == 2) pack(p, true);
}

void ProblemDraw::set_key_lengths(Problem& p) {
  p.key_lengths = Tensor::contiguous(offsets_.data(), DType::int32, {4}, p.device);
}

void ProblemDraw::pack(Problem& p, bool keys) {
  const Tensor offsets = Tensor::contiguous(offsets_.data(), DType::int32, {5}, p.device);
  p.packed = true;
  p.cu_seqlens_q = offsets;
  p.total_q = p.batch * p.seq_q;
  if (!keys) return;
  p.cu_seqlens_k = offsets;
  p.total_k = p.batch * p.seq_k;
}

/// Blocks of less than a tile, of a tile, of several.
void ProblemDraw::set_list(Problem& p) {
  BlockList& list = p.block_list;
  list.block_q = pick(std::array<std::int64_t, 3>{32, 64, 256});
  list.block_k = pick(std::array<std::int64_t, 3>{32, 64, 128});
  const std::int64_t rows = (p.seq_q + list.block_q - 1) / list.block_q;
  list.row_offsets =
      Tensor::contiguous(offsets_.data(), DType::int32, {p.batch, p.heads_q, rows + 1}, p.device);
  list.block_index = Tensor::contiguous(offsets_.data(), DType::int32, {1024}, p.device);
}

void ProblemDraw::set_pages(Problem& p) {
  const bool packed = p.packed;
  p.packed = false;
  p.paged = true;
  p.page_size = pick(std::array<std::int64_t, 3>{8, 16, 256});
  const std::int64_t pages = p.seq_k / p.page_size;
  p.k = p.v = Tensor::contiguous(reals_.data(), p.dtype,
                                 {pages, p.heads_k, p.page_size, p.head_dim}, p.device);
  p.block_table = Tensor::contiguous(offsets_.data(), DType::int32, {4, pages}, p.device);
  set_key_lengths(p);
  if (packed) pack(p, false);
}

void ProblemDraw::set_pairs(Problem& p) {
  const std::size_t kind = below(3);
  const auto of = [&](DType type) {
    return Tensor::contiguous(reals_.data(), type, {p.batch, p.heads_q, p.seq_q, p.seq_k},
                              p.device);
  };
  if (kind != 1) p.bias = of(p.dtype);
  if (kind != 0) p.mask = of(DType::boolean);
}

void ProblemDraw::set_functions(Problem& p) {
  const std::size_t kind = below(3);
  if (kind != 1) {
    p.score_function = expression::function_of(functions_->score);
    p.score_gradient = expression::lower(functions_->score).gradient();
    p.score_affine = expression::lower(functions_->score).affine();
    for (const Captured& c : functions_->score.captures()) p.dcaptures.push_back(c.tensor());
  }
  if (kind != 0) p.mask_function = expression::function_of(functions_->mask);
}

}  // namespace tilewise::cuda
