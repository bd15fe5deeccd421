#include "cli/run/run_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "cli/files/error.h"
#include "cli/files/npy.h"
#include "cli/files/safetensors.h"
#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string>& input_names() {
  static const std::vector<std::string> names = {"q",
                                                 "k",
                                                 "v",
                                                 "dO",
                                                 "dLSE",
                                                 "bias",
                                                 "mask",
                                                 "sinks",
                                                 "alibi_slopes",
                                                 "key_lengths",
                                                 "cu_seqlens_q",
                                                 "cu_seqlens_k"};
  return names;
}

bool same_letters(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

/// The name as it is written here; throws where it means nothing.
const std::string& known_name(const std::string& path, const std::string& name) {
  const auto known = std::find_if(input_names().begin(), input_names().end(),
                                  [&](const std::string& one) { return same_letters(one, name); });
  if (known == input_names().end()) {
    throw files::FileError(path, fmt::format("unknown name {}: expected {}", files::in_quotes(name),
                                             fmt::join(input_names(), ", ")));
  }
  return *known;
}

void add(RunInput& input, const std::string& path, const std::string& name, files::Array array) {
  const std::string& known = known_name(path, name);
  if (const std::optional<std::int64_t> nan = files::first_nan(array)) {
    const std::vector<std::int64_t> index = files::element_index(array, *nan);
    throw files::FileError(path,
                           fmt::format("{} has a NaN at {}", known, files::shape_text(index)));
  }
  if (!input.arrays.emplace(known, std::move(array)).second) {
    throw files::FileError(path, fmt::format("{} appears twice", known));
  }
}

bool is_npy(const std::string& path) { return fs::path(path).extension() == ".npy"; }

/// Before anything large is read: the names in the files, and whether any is missing.
void check_names(const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const std::string& path : paths) {
    const std::string extension = fs::path(path).extension().string();
    if (!is_npy(path) && extension != ".safetensors") {
      throw files::FileError(path, "expected a name that ends in .npy or .safetensors");
    }
    if (is_npy(path)) {
      all.push_back(known_name(path, fs::path(path).stem().string()));
    } else {
      for (const std::string& name : files::names_in_safetensors(path)) {
        if (std::any_of(input_names().begin(), input_names().end(),
                        [&](const std::string& one) { return same_letters(one, name); })) {
          all.push_back(known_name(path, name));
        }
      }
    }
  }
  for (const char* name : {"q", "k", "v"}) {
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      throw files::FileError(fmt::format("{}", fmt::join(paths, ", ")),
                             fmt::format("{} is missing: expected q, k and v", name));
    }
  }
}

/// Tensors of a type that is not read: an input may not be one of them.
void check_unread(const std::string& path, const std::map<std::string, std::string>& unread) {
  for (const auto& [name, type] : unread) {
    const std::string what =
        fmt::format("tensor {} has the type {}: expected F64, F32, F16, BF16, BOOL, I32, I64 or U8",
                    files::in_quotes(name), files::in_quotes(type));
    const bool wanted = std::any_of(
        input_names().begin(), input_names().end(),
        [&, &tensor = name](const std::string& one) { return same_letters(one, tensor); });
    if (wanted) throw files::FileError(path, what);
    complain(fmt::format("{}: {}: left out", path, what));
  }
}

}  // namespace

RunInput read_run_input(const std::vector<std::string>& paths, files::TwoBytes two_bytes) {
  check_names(paths);
  RunInput input;
  for (const std::string& path : paths) {
    if (is_npy(path)) {
      add(input, path, fs::path(path).stem().string(), files::load_npy(path, two_bytes));
      continue;
    }
    files::Safetensors file = files::load_safetensors(path);
    check_unread(path, file.unread);
    for (files::NamedArray& tensor : file.tensors) {
      add(input, path, tensor.name, std::move(tensor.array));
    }
    input.metadata.merge(file.metadata);
    input.safetensors = true;
  }
  return input;
}

RunTensors::RunTensors(RunInput& input, FileLayout layout, const AttentionSpec& options)
    : input_(input), layout_(layout), spec_(options) {
  spec_.bias = plain_view("bias");
  spec_.mask = plain_view("mask");
  spec_.sinks = plain_view("sinks");
  spec_.alibi_slopes = plain_view("alibi_slopes");
  spec_.key_lengths = plain_view("key_lengths");
  spec_.cu_seqlens_q = plain_view("cu_seqlens_q");
  spec_.cu_seqlens_k = plain_view("cu_seqlens_k");
  add_forward();
  if (input_.has("dO")) {
    add_backward();
  } else if (input_.has("dLSE")) {
    throw BadInput("dLSE: expected together with dO");
  }
}

files::Array* RunTensors::find(const std::string& name) {
  const auto at = input_.arrays.find(name);
  return at == input_.arrays.end() ? nullptr : &at->second;
}

/// The array as it is, axes in the file's order; "not given" when there is none.
Tensor RunTensors::plain_view(const std::string& name) {
  files::Array* array = find(name);
  if (array == nullptr) return {};
  const std::vector<std::int64_t>& shape = array->shape;
  if (shape.empty() || shape.size() > Tensor::kMaxRank) {
    throw BadInput(
        fmt::format("{}: its shape is {}: expected 1 to 4 axes", name, files::shape_text(shape)));
  }
  Tensor t;
  t.data = array->bytes.data();
  t.dtype = array->dtype;
  t.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    t.sizes[axis] = shape[axis];
    t.strides[axis] = stride;
    stride *= shape[axis];
  }
  return t;
}

Tensor RunTensors::input_view(const std::string& name) {
  files::Array* array = find(name);
  if (array == nullptr) return {};
  const bool packed = spec_.cu_seqlens_q.defined() || spec_.cu_seqlens_k.defined();
  const std::size_t rank = array->shape.size();
  if (packed ? rank != 3 : rank != 3 && rank != 4) {
    throw BadInput(fmt::format(
        "{}: its shape is {}: expected {}", name, files::shape_text(array->shape),
        packed
            ? "(total, heads, dim), in bhsd (heads, total, dim), with packed sequences"
            : "(batch, seq, heads, dim), in bhsd (batch, heads, seq, dim), or (batch, seq, dim)"));
  }
  return view(*array);
}

/// Logical axes (B, H, S, D) of an array in the file's layout.
Tensor RunTensors::view(files::Array& array) const {
  const std::vector<std::int64_t>& n = array.shape;
  void* data = array.bytes.data();
  const bool bshd = layout_ == FileLayout::bshd;
  if (spec_.cu_seqlens_q.defined() || spec_.cu_seqlens_k.defined()) {
    return bshd ? Tensor::packed(data, array.dtype, n[0], n[1], n[2])
                : Tensor::bhsd(data, array.dtype, 1, n[0], n[1], n[2]);
  }
  if (n.size() == 3) return Tensor::bhsd(data, array.dtype, n[0], 1, n[1], n[2]);
  return bshd ? Tensor::bshd(data, array.dtype, n[0], n[1], n[2], n[3])
              : Tensor::bhsd(data, array.dtype, n[0], n[1], n[2], n[3]);
}

files::Array& RunTensors::add_result(const std::string& name, DType dtype,
                                     std::vector<std::int64_t> shape) {
  return results_.emplace(name, files::make_array(name, dtype, std::move(shape))).first->second;
}

void RunTensors::add_forward() {
  forward_.q = input_view("q");
  forward_.k = input_view("k");
  forward_.v = input_view("v");
  const files::Array& q = *find("q");
  std::vector<std::int64_t> shape = q.shape;
  shape.back() = find("v")->shape.back();
  forward_.o = view(add_result("O", q.dtype, shape));

  const Tensor& t = forward_.q;
  const bool packed = spec_.cu_seqlens_q.defined() || spec_.cu_seqlens_k.defined();
  const bool one_head = q.shape.size() == 3 && !packed;
  if (packed) {
    files::Array& lse = add_result("LSE", DType::float32, {t.sizes[1], t.sizes[2]});
    forward_.lse = Tensor::contiguous(lse.bytes.data(), lse.dtype, {t.sizes[1], t.sizes[2]});
    return;
  }
  std::vector<std::int64_t> lse_shape = {t.sizes[0], t.sizes[1], t.sizes[2]};
  if (one_head) lse_shape.erase(lse_shape.begin() + 1);
  files::Array& lse = add_result("LSE", DType::float32, lse_shape);
  forward_.lse =
      Tensor::contiguous(lse.bytes.data(), lse.dtype, {t.sizes[0], t.sizes[1], t.sizes[2]});
}

void RunTensors::add_backward() {
  backward_.q = forward_.q;
  backward_.k = forward_.k;
  backward_.v = forward_.v;
  backward_.o = forward_.o;
  backward_.lse = forward_.lse;
  backward_.d_o = input_view("dO");
  backward_.d_lse = plain_view("dLSE");
  if (backward_.d_lse.rank == 2 && forward_.lse.rank == 3) {  // one head: as LSE is written
    const Tensor& d = backward_.d_lse;
    backward_.d_lse = Tensor::contiguous(d.data, d.dtype, {d.sizes[0], 1, d.sizes[1]});
  }
  const auto gradient = [&](const char* result, const char* input) {
    const files::Array& array = *find(input);
    return view(add_result(result, array.dtype, array.shape));
  };
  backward_.dq = gradient("dQ", "q");
  backward_.dk = gradient("dK", "k");
  backward_.dv = gradient("dV", "v");
  if (spec_.bias.defined()) {
    backward_.dbias = spec_.bias;
    const files::Array& bias = *find("bias");
    backward_.dbias.data = add_result("dbias", bias.dtype, bias.shape).bytes.data();
  }
  if (spec_.sinks.defined()) {
    backward_.dsinks = spec_.sinks;
    const files::Array& sinks = *find("sinks");
    backward_.dsinks.data = add_result("dsinks", DType::float32, sinks.shape).bytes.data();
  }
}

void write_results(const std::string& path, const RunTensors& tensors, bool npy) {
  if (npy) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) throw files::FileError(path, error.message());
    for (const auto& [name, array] : tensors.results()) {
      files::save_npy(fs::path(path) / (name + ".npy"), array);
    }
    return;
  }
  files::Safetensors file;
  for (const auto& [name, array] : tensors.results()) file.tensors.push_back({name, array});
  file.metadata["producer"] = fmt::format("tilewise {}", version());
  files::save_safetensors(path, file);
}

}  // namespace tilewise::cli
