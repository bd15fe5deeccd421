/// Programs that say what AttentionSpec has a field for: kernels run those fields at no cost.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "expression/program.h"

namespace tilewise::expression {

/// An integer as query*i + key*j + query_length*Sq + key_length*Sk + constant.
struct Linear {
  std::int64_t query = 0, key = 0, query_length = 0, key_length = 0, constant = 0;
  bool operator==(const Linear&) const = default;
};

/// nullopt for a value of another form.
std::optional<Linear> linear_form(const Program& program, std::int32_t node);

/// A mask as the AND of parts.
struct Conjuncts {
  std::vector<Linear> linear;              ///< parts that say linear >= 0
  std::vector<std::int32_t> linear_nodes;  ///< their nodes
  std::vector<std::int32_t> others;        ///< nodes
};
Conjuncts conjuncts(const Program& mask);

/// The AND of some of a mask's nodes, as a program with the mask's captures.
Program conjunction(const Program& mask, const std::vector<std::int32_t>& nodes);

/// c where the score is c * tanh(score / c), c > 0; else 0.
double softcap_of(const Program& score);

/// score - slopes[...] * |distance|, or with distance itself.
struct Alibi {
  std::int32_t capture = -1;  ///< float32; read at [h] or [b, h]
  Linear distance;
  bool absolute = true;
};
std::optional<Alibi> alibi_of(const Program& score);

/// ids[i] == ids[j] or ids[b, i] == ids[b, j], of one int32 or int64 tensor.
struct DocumentIds {
  std::int32_t capture = -1;
  int axis = 0;  ///< of i and j
};
std::optional<DocumentIds> documents_of(const Program& mask);

}  // namespace tilewise::expression
