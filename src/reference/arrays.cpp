#include "reference/arrays.h"

#include <algorithm>
#include <limits>

#include "reference/elements.h"

namespace tilewise::reference {
namespace {

std::int64_t offset_of(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t s) {
  return b * t.strides[0] + h * t.strides[1] + s * t.strides[2];
}

/// Calls f(element of the array, offset in the tensor) for all elements.
template <class F>
void for_each_element(const Array& array, const Tensor& tensor, F f) {
  for (std::int64_t b = 0; b < array.batch; ++b) {
    for (std::int64_t h = 0; h < array.heads; ++h) {
      for (std::int64_t s = 0; s < array.rows; ++s) {
        const std::int64_t begin = offset_of(tensor, b, h, s);
        double* row = array.row(b, h, s);
        for (std::int64_t d = 0; d < array.dim; ++d) {
          // Row statistics have no fourth axis: d is 0 then, and so is its stride.
          f(row[d], begin + d * tensor.strides[3]);
        }
      }
    }
  }
}

void read(const Array& to, const Tensor& from) {
  for_each_element(to, from,
                   [&](double& value, std::int64_t offset) { value = load(from, offset); });
}

/// K or V out of its pages; rows past a length are never read, and stay 0.
void read_pages(const Array& to, const Tensor& pool, const Problem& problem) {
  std::fill_n(to.data, to.elems(), 0.0);
  for (std::int64_t b = 0; b < to.batch; ++b) {
    const Sequence sequence = problem.sequence(b);
    for (std::int64_t h = 0; h < to.heads; ++h) {
      for (std::int64_t j = 0; j < sequence.k_length; ++j) {
        const Problem::KeyRow at = problem.key_row(b, sequence, j);
        const std::int64_t begin = offset_of(pool, at.batch, h, at.row);
        for (std::int64_t d = 0; d < to.dim; ++d) {
          to.row(b, h, j)[d] = load(pool, begin + d * pool.strides[3]);
        }
      }
    }
  }
}

/// Size of one axis of dbias: 1 where the bias broadcasts, over an empty axis too.
std::int64_t own_size(const Tensor& t, std::size_t axis) {
  return t.strides[axis] == 0 ? 1 : t.sizes[axis];
}

}  // namespace

Arrays::Arrays(const Problem& p, Pass pass) {
  const std::int64_t batch = p.stored_batch();
  const std::int64_t keys = p.packed_keys() ? p.total_k : p.seq_k;
  const std::int64_t key_batch = p.packed_keys() ? 1 : p.batch;
  const auto queries = [&](std::int64_t dim) {
    return Array{.batch = batch, .heads = p.heads_q, .rows = p.total_q, .dim = dim};
  };
  q = queries(p.head_dim);
  k = {.batch = key_batch, .heads = p.heads_k, .rows = keys, .dim = p.head_dim};
  v = {.batch = key_batch, .heads = p.heads_k, .rows = keys, .dim = p.head_dim_v};
  if (pass == Pass::forward) {
    o = queries(p.head_dim_v);
    lse = queries(1);
    return;
  }
  d_o = queries(p.head_dim_v);
  if (p.d_lse.defined()) d_lse = queries(1);
  dq = q;
  dk = k;
  dv = v;
  if (p.sinks.defined()) dsinks_b = {.batch = p.batch, .heads = p.heads_q, .rows = 1, .dim = 1};
  if (p.dbias.defined()) {
    dbias.batch = own_size(p.dbias, 0);
    dbias.heads = own_size(p.dbias, 1);
    dbias.rows = own_size(p.dbias, 2);
    dbias.dim = own_size(p.dbias, 3);
  }
  for (const Tensor& t : p.dcaptures) {
    const auto size = [&](int axis) {
      return axis < t.rank ? t.sizes[static_cast<std::size_t>(axis)] : 1;
    };
    dcaptures.push_back(
        t.defined() ? Array{.batch = size(0), .heads = size(1), .rows = size(2), .dim = size(3)}
                    : Array{});
  }
}

/// Names and arrays, in the order in which they lie in memory.
template <class Self>
auto Arrays::all(Self& self) {
  using Pointer = decltype(&self.q);
  std::vector<std::pair<const char*, Pointer>> named{{"q_f64", &self.q},
                                                     {"k_f64", &self.k},
                                                     {"v_f64", &self.v},
                                                     {"dO_f64", &self.d_o},
                                                     {"dL_f64", &self.d_lse},
                                                     {"O_f64", &self.o},
                                                     {"L_f64", &self.lse},
                                                     {"dq_f64", &self.dq},
                                                     {"dk_f64", &self.dk},
                                                     {"dv_f64", &self.dv},
                                                     {"dsinks_f64", &self.dsinks_b},
                                                     {"dbias_f64", &self.dbias}};
  for (auto& array : self.dcaptures) named.emplace_back("dcaptures_f64", &array);
  return named;
}

std::vector<MemoryPart> Arrays::memory() const {
  std::vector<MemoryPart> items;
  for (const auto& [name, array] : all(*this)) {
    if (array->elems() == 0) continue;
    items.push_back(memory_part(name, MemoryItem::Role::workspace, DType::float64,
                                {array->batch, array->heads, array->rows, array->dim}));
  }
  return items;
}

void Arrays::place(const Problem& problem, void* memory) {
  WorkspaceCutter cutter(memory);
  for (const auto& [name, array] : all(*this)) {
    array->data = cutter.take<double>(array->elems());
  }
  read(q, problem.q);
  if (problem.paged) {
    read_pages(k, problem.k, problem);
    read_pages(v, problem.v, problem);
  } else {
    read(k, problem.k);
    read(v, problem.v);
  }
  if (problem.d_o.defined()) read(d_o, problem.d_o);
  if (problem.d_lse.defined()) read(d_lse, problem.d_lse);
  std::fill_n(lse.data, lse.elems(), -std::numeric_limits<double>::infinity());
  for (const Array* result : {&o, &dq, &dk, &dv, &dsinks_b, static_cast<Array*>(&dbias)}) {
    std::fill_n(result->data, result->elems(), 0.0);
  }
  for (const Array& result : dcaptures) std::fill_n(result.data, result.elems(), 0.0);
}

bool Arrays::shares_gradients() const {
  return dbias.elems() > 0 || std::any_of(dcaptures.begin(), dcaptures.end(),
                                          [](const Array& a) { return a.elems() > 0; });
}

std::vector<double> Arrays::dsinks() const {
  std::vector<double> sums(static_cast<std::size_t>(dsinks_b.heads), 0.0);
  for (std::int64_t b = 0; b < dsinks_b.batch; ++b) {
    for (std::int64_t h = 0; h < dsinks_b.heads; ++h) {
      sums[static_cast<std::size_t>(h)] += *dsinks_b.row(b, h, 0);
    }
  }
  return sums;
}

std::vector<std::vector<double>> Arrays::capture_gradients() const {
  std::vector<std::vector<double>> all_values;
  for (const Array& array : dcaptures) all_values.push_back(array.values());
  return all_values;
}

OwnedArrays::OwnedArrays(const Problem& problem, Pass pass) : arrays_(problem, pass) {
  std::int64_t bytes = 0;
  for (const MemoryPart& item : arrays_.memory()) bytes += align_workspace(item.bytes);
  memory_.resize(static_cast<std::size_t>(bytes) / sizeof(double));
  arrays_.place(problem, memory_.data());
}

void write(const Tensor& to, const Array& from) {
  for_each_element(from, to, [&](double value, std::int64_t offset) { store(to, offset, value); });
}

}  // namespace tilewise::reference
