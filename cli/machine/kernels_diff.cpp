#include "cli/machine/kernels_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/shell/failure.h"
#include "cuda/jit/pack.h"

namespace tilewise::cli {
namespace {

/// A number of an ELF file, little endian; 0 beyond the file's end.
template <class Number>
Number read(std::string_view file, std::uint64_t at) {
  Number value{};
  if (at <= file.size() && file.size() - at >= sizeof value) {
    std::memcpy(&value, file.data() + at, sizeof value);
  }
  return value;
}

std::string_view part(std::string_view file, std::uint64_t at, std::uint64_t size) {
  if (at > file.size() || file.size() - at < size) return {};
  return file.substr(at, size);
}

/// The instructions of a cubin: names and bytes of its .text sections. Numbers of lines and paths
/// of sources are in other sections. Offsets: ELF-64 object file format, "Section header".
std::string machine_code(std::string_view cubin) {
  if (!cubin.starts_with("\177ELF")) return {};
  const auto table = read<std::uint64_t>(cubin, 0x28);
  const auto entry_bytes = read<std::uint16_t>(cubin, 0x3A);
  const auto count = read<std::uint16_t>(cubin, 0x3C), names = read<std::uint16_t>(cubin, 0x3E);
  const auto content = [&](unsigned section) {
    const std::uint64_t header = table + std::uint64_t{section} * entry_bytes;
    return part(cubin, read<std::uint64_t>(cubin, header + 0x18),
                read<std::uint64_t>(cubin, header + 0x20));
  };
  const std::string_view all_names = content(names);
  std::map<std::string_view, std::string_view> code;
  for (unsigned section = 0; section < count; ++section) {
    const auto at = read<std::uint32_t>(cubin, table + std::uint64_t{section} * entry_bytes);
    std::string_view name = all_names.substr(std::min<std::size_t>(at, all_names.size()));
    name = name.substr(0, name.find('\0'));
    if (name.starts_with(".text")) code[name] = content(section);
  }
  std::string text;
  for (const auto& [name, bytes] : code) text.append(name).append(bytes);
  return text;
}

struct Kernel {
  cuda::KernelEntry entry;
  std::string code;
};
using Kernels = std::map<std::string, Kernel>;  // by title()

std::string title(const cuda::KernelEntry& entry) {
  return fmt::format("{} {} {{{}}}", entry.name, cuda::arch_name(entry.arch), entry.config);
}

Kernels read_kernels(const std::string& path) {
  const cuda::Pack pack(path);
  Kernels kernels;
  for (const cuda::KernelEntry& described : pack.list()) {
    std::optional<cuda::KernelEntry> entry = pack.read(described.key);
    if (!entry) throw BadInput(fmt::format("{}: kernel {} is damaged", path, described.name));
    std::string code = machine_code(entry->cubin);
    if (code.empty()) {
      throw BadInput(fmt::format("{}: kernel {} has no .text section", path, described.name));
    }
    std::string name = title(*entry);
    kernels[std::move(name)] = {std::move(*entry), std::move(code)};
  }
  if (kernels.empty()) throw BadInput(path + ": expected a pack file that contains kernels");
  return kernels;
}

void print_difference(const std::string& name, const Kernel& before, const Kernel& after) {
  const cuda::CompileReport &old_report = before.entry.report, &new_report = after.entry.report;
  fmt::print("differs: {}\n         code {} -> {} bytes, registers {} -> {}, spilled {} -> {}\n",
             name, before.code.size(), after.code.size(), old_report.registers,
             new_report.registers, old_report.spill_store_bytes + old_report.spill_load_bytes,
             new_report.spill_store_bytes + new_report.spill_load_bytes);
}

/// A kernel of `added` with this name and machine code, taken out of it; none: empty.
std::string take_same_code(const Kernel& kernel, Kernels& added) {
  const auto found = std::find_if(added.begin(), added.end(), [&](const auto& other) {
    return other.second.entry.name == kernel.entry.name &&
           other.second.entry.arch == kernel.entry.arch && other.second.code == kernel.code;
  });
  if (found == added.end()) return {};
  std::string name = found->first;
  added.erase(found);
  return name;
}

}  // namespace

int diff_packs(const std::string& old_path, const std::string& new_path) {
  const Kernels before = read_kernels(old_path);
  Kernels added = read_kernels(new_path);
  int same = 0, differing = 0, renamed = 0;
  std::vector<const Kernels::value_type*> unmatched;
  for (const auto& kernel : before) {
    const auto found = added.find(kernel.first);
    if (found == added.end()) {
      unmatched.push_back(&kernel);
      continue;
    }
    if (found->second.code == kernel.second.code) {
      ++same;
    } else {
      print_difference(kernel.first, kernel.second, found->second);
      ++differing;
    }
    added.erase(found);
  }
  int missing = 0;
  for (const auto* kernel : unmatched) {
    if (const std::string name = take_same_code(kernel->second, added); !name.empty()) {
      fmt::print("renamed: {}\n      to {}\n", kernel->first, name);
      ++renamed;
    } else {
      fmt::print("missing: {}\n", kernel->first);
      ++missing;
    }
  }
  for (const auto& [name, kernel] : added) fmt::print("added: {}\n", name);
  fmt::print("{} the same, {} differ, {} renamed, {} missing, {} added\n", same, differing, renamed,
             missing, added.size());
  return differing + missing == 0 ? kDone : kCheckFailed;
}

}  // namespace tilewise::cli
