/// Shared libraries that are opened at run time and never linked.
#pragma once

#include <span>
#include <string>

namespace tilewise::cuda {

/// One opened library; stays open until the process ends (the functions taken from it are kept in
/// tables).
class SharedLibrary {
 public:
  /// Opens the first of `sonames` that is found: in TILEWISE_CUDA_PATH (the folder, its lib64 and
  /// its lib), where the dynamic linker looks, in the toolkit's folder, in pip's nvidia folders
  /// beside this package in its Python environment and in the virtual environment. Not found:
  /// false, and error() says what was looked for.
  bool open(std::span<const std::string> sonames);

  /// Opens another library of the folder that this one was found in; false when it is not there.
  bool open_beside(const std::string& file) const;

  /// File that was opened, as it was named to the dynamic linker.
  const std::string& path() const { return path_; }
  const std::string& error() const { return error_; }

  /// Looks a function up; false (and error() names it) when the library has none of that name.
  template <class Function>
  bool resolve(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  void* symbol(const char* name);

  void* handle_ = nullptr;
  std::string path_, error_;
};

/// Folder of the file (shared library or program) that this code was linked into; empty when
/// unknown.
std::string module_folder();

}  // namespace tilewise::cuda
