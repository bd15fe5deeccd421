/// The lengths in the spec: packed sequences, pages, keys of each entry.
#pragma once

#include "problem/problem.h"

namespace tilewise {

/// Element i of an int32 or int64 vector on the host.
std::int64_t integer_at(const Tensor& t, std::int64_t i);
bool host_readable(const Tensor& t);
/// Offsets of packed sequences: their shape, type and device.
void check_offsets(const char* name, const Tensor& offsets, Device device);
/// Upper bound of the packed lengths: the caller's, cut to the rows that the tensor has. 0 is no
/// bound: it is an error where offsets cannot be read and the tensor has rows.
std::int64_t packed_bound(const char* offsets_name, const char* bound_name, const Tensor& offsets,
                          std::int64_t bound, std::int64_t total);

/// Each sets its part of a problem whose sizes are those of the tensors. InvalidArgument names the
/// argument; values are judged where the host can read them.
void take_packed(Problem& problem, const AttentionSpec& spec);
void take_paged(Problem& problem, const AttentionSpec& spec);
/// After take_paged(), which says how many keys there may be.
void take_key_lengths(Problem& problem, const AttentionSpec& spec);

}  // namespace tilewise
