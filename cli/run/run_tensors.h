/// The tensors of one `tilewise run`: from files, to files, and as the library sees them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/files/array.h"
#include "cli/files/npy.h"
#include "harness/device_memory.h"
#include "tilewise/attention.h"

namespace tilewise::cli {

/// The tensors of the input files, by their names in the file format: q, k, v, dO, ...
struct RunInput {
  std::map<std::string, files::Array> arrays;
  std::map<std::string, std::string> metadata;
  bool safetensors = false;  ///< at least one of the files is of that format

  bool has(const std::string& name) const { return arrays.count(name) > 0; }
};

/// Reads .safetensors files, whose tensors have names, and .npy files, whose name is the file's:
/// q.npy. Case does not matter. Throws FileError for a broken file, a name that means nothing here,
/// a NaN or a missing q, k or v; names are looked at before any tensor is read. Tensors of types
/// that are not read are left out and named on stderr. `two_bytes`: of .npy files.
RunInput read_run_input(const std::vector<std::string>& paths, files::TwoBytes two_bytes);

/// Order of the axes in the files.
enum class FileLayout { bshd, bhsd };

/// Views of the arrays, and arrays for the results in the same layout.
class RunTensors {
 public:
  /// Keeps pointers into `input`. Throws BadInput for shapes that no view can express; the library
  /// judges the rest.
  RunTensors(RunInput& input, FileLayout layout, const AttentionSpec& options);

  const ForwardTensors& forward() const { return forward_; }
  /// Defined when the input has dO.
  const BackwardTensors& backward() const { return backward_; }
  bool has_backward() const { return backward_.d_o.defined(); }
  const AttentionSpec& spec() const { return spec_; }

  /// O, LSE, and with dO the gradients.
  const std::map<std::string, files::Array>& results() const { return results_; }

 private:
  files::Array* find(const std::string& name);
  Tensor input_view(const std::string& name);
  Tensor plain_view(const std::string& name);
  Tensor view(files::Array& array) const;
  files::Array& add_result(const std::string& name, DType dtype, std::vector<std::int64_t> shape);
  void add_forward();
  void add_backward();

  RunInput& input_;
  FileLayout layout_;
  AttentionSpec spec_;
  ForwardTensors forward_;
  BackwardTensors backward_;
  std::map<std::string, files::Array> results_;
};

/// A .safetensors file, or with `npy` a folder of .npy files.
void write_results(const std::string& path, const RunTensors& tensors, bool npy);

}  // namespace tilewise::cli
