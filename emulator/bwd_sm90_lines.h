/// A line of text as a problem of bwd_sm90, bwd_dq_sm90 and bwd_short_sm90.
#pragma once

#include "bwd_sm90_check.h"
//
#include "option_lines.h"

namespace {

/// The words of the backward's own, for fields of Shape. `grid` is the number of blocks.
const std::vector<std::string_view> kOwnWords = with_option_words(
    {"grid", "section_heads", "apart", "parts", "sharers", "last_first", "given_delta", "values"});

/// The shape of a line, and the bias that it points to.
class WrittenShape {
 public:
  WrittenShape(const char* text, Element element) : line_(text, kOwnWords) {
    const auto type = element == Element::fp16 ? DType::float16 : DType::bfloat16;
    take_common(line_, type, shape_);
    take_lengths();
    take_visible();
    take_options();
    line_.expect_taken();
  }
  WrittenShape(const WrittenShape&) = delete;
  WrittenShape& operator=(const WrittenShape&) = delete;

  const char* name() const { return line_.name(); }
  const Shape& shape() const { return shape_; }

 private:
  void take_lengths() {
    const auto batch = static_cast<int>(line_.take(&Words::batch));
    shape_.seq_q = static_cast<int>(line_.take(&Words::seq_q));
    shape_.seq_k = static_cast<int>(line_.take(&Words::seq_k));
    shape_.keys = ints(line_.take(&Words::key_lengths));
    const auto packed = line_.take(&Words::packed);
    if (!packed) {
      shape_.batch = batch;
      return;
    }
    shape_.queries = ints(packed->q_lengths);
    shape_.keys = ints(packed->k_lengths);
    shape_.tail = static_cast<int>(packed->tail_q);
    line_.expect(!packed->wide_offsets && !packed->give_max, "packed= without int64 and max");
    line_.expect(packed->tail_k == packed->tail_q, "equal tails");
  }
  /// Where lengths are the device's, low and high are without Sk - Sq.
  void take_visible() {
    const bool ragged = !shape_.keys.empty();
    const int shift = ragged ? 0 : shape_.seq_k - shape_.seq_q;
    const tilewise::Window window = line_.take(&Words::window);
    if (window.left) shape_.low = shift - static_cast<int>(*window.left);
    if (window.right) shape_.high = shift + static_cast<int>(*window.right) + 1;
    const Causal causal = line_.take(&Words::causal);
    if (causal == Causal::bottom_right) shape_.high = std::min(shape_.high, shift + 1);
    if (causal != Causal::top_left) return;
    (ragged ? shape_.top : shape_.high) = 1;
  }
  void take_options() {
    shape_.scale = static_cast<float>(line_.take(&Words::scale).value_or(shape_.scale));
    shape_.amplitude = take_amplitude(line_);
    shape_.d_lse = line_.take(&Words::d_lse);
    shape_.dropout = take_dropout(line_);
    if (const auto mask = line_.take(&Words::mask)) shape_.shows = shows_of(line_, *mask);
    if (const auto blocks = line_.take(&Words::blocks)) shape_.list = blocks_of(line_, *blocks);
    if (const auto bias = line_.take(&Words::bias)) {
      bias_ = added_of(line_, *bias);
      shape_.bias = &bias_;
    }
    shape_.last_first = line_.own("last_first") != 0;
    shape_.given_delta = line_.own("given_delta") != 0;
    shape_.blocks = static_cast<unsigned>(line_.own("grid", 1));
    shape_.section_heads = line_.own("section_heads", 1);
    shape_.apart = line_.own("apart", 1);
    shape_.parts = line_.own("parts", 1);
    shape_.sharers = line_.own("sharers", 1);
    shape_.values = static_cast<unsigned>(line_.own("values", static_cast<int>(shape_.values)));
  }

  CaseLine line_;
  Shape shape_;
  Added bias_;
};

/// Runs the line in a config.
template <Config kConfig>
void check(const char* line, double bound) {
  const WrittenShape written(line, kConfig.element);
  check<kConfig>(written.name(), written.shape(), bound);
}

}  // namespace
