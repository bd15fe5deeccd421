#include "cuda/driver/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace tilewise::cuda {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// Folders that match a pattern; none when nothing does.
void append_matches(const std::string& pattern, std::vector<std::string>& folders) {
  glob_t found{};
  if (glob(pattern.c_str(), GLOB_ONLYDIR, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) folders.emplace_back(found.gl_pathv[i]);
  }
  globfree(&found);
}

/// Where to look after the dynamic linker's own places.
std::vector<std::string> fallback_folders() {
  std::vector<std::string> folders;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string home = environment(variable); !home.empty()) {
      folders.push_back(home + "/lib64");
    }
  }
  folders.emplace_back("/usr/local/cuda/lib64");
  folders.emplace_back("/usr/lib/wsl/lib");
  // Whoever may write beside an installed package may change it. Elsewhere a folder of that name
  // may be anybody's.
  const std::filesystem::path beside = std::filesystem::path(module_folder()).parent_path();
  if (beside.filename() == "site-packages" || beside.filename() == "dist-packages")
    append_matches((beside / "nvidia/*/lib").string(), folders);
  if (const std::string venv = environment("VIRTUAL_ENV"); !venv.empty()) {
    append_matches(venv + "/lib/python3*/site-packages/nvidia/*/lib", folders);
  }
  return folders;
}

}  // namespace

std::string module_folder() {
  static const int anchor = 0;
  Dl_info info{};
  if (dladdr(&anchor, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, ignored);
  return file.empty() ? std::string() : file.parent_path().string();
}

bool SharedLibrary::open(std::span<const std::string> sonames) {
  std::vector<std::string> folders;
  if (const std::string wanted = environment("TILEWISE_CUDA_PATH"); !wanted.empty()) {
    folders = {wanted, wanted + "/lib64", wanted + "/lib"};
  }
  folders.emplace_back();  // the dynamic linker's own places
  for (std::string& folder : fallback_folders()) folders.push_back(std::move(folder));

  std::string soname_error;
  for (const std::string& folder : folders) {
    for (const std::string& soname : sonames) {
      std::string file = folder;
      if (!file.empty()) file += '/';
      file += soname;
      handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        path_ = std::move(file);
        error_.clear();
        return true;
      }
      const char* reason = dlerror();
      if (soname_error.empty() && folder.empty() && reason != nullptr) soname_error = reason;
    }
  }
  error_ = soname_error;
  return false;
}

bool SharedLibrary::open_beside(const std::string& file) const {
  link_map* map = nullptr;
  if (handle_ == nullptr || dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) return false;
  const std::filesystem::path path = std::filesystem::path(map->l_name).replace_filename(file);
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr;
}

void* SharedLibrary::symbol(const char* name) {
  void* found = handle_ == nullptr ? nullptr : dlsym(handle_, name);
  if (found == nullptr) error_ = path_ + " has no function " + name;
  return found;
}

}  // namespace tilewise::cuda
