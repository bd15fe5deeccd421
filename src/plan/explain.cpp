#include <algorithm>
#include <cstdio>

#include "plan/accounting.h"
#include "plan/choose.h"
#include "plan/significant.h"
#include "problem/plain_text.h"
#include "tilewise/plan.h"

namespace tilewise {
namespace {

const char* role_name(MemoryItem::Role role) {
  switch (role) {
    case MemoryItem::Role::input:
      return "input";
    case MemoryItem::Role::output:
      return "output";
    case MemoryItem::Role::saved:
      return "saved";
    case MemoryItem::Role::gradient:
      return "gradient";
    case MemoryItem::Role::workspace:
      return "workspace";
  }
  return "";
}

std::string line(const char* format, const auto&... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string bytes_text(std::int64_t bytes) {
  const auto in = [&](double unit, int digits) {
    return number_text(static_cast<double>(bytes) / unit, std::chars_format::fixed, digits);
  };
  if (bytes >= std::int64_t{1} << 30) return in(1073741824.0, 2) + " GiB";
  if (bytes >= std::int64_t{1} << 20) return in(1048576.0, 2) + " MiB";
  if (bytes >= 1024) return in(1024.0, 1) + " KiB";
  return std::to_string(bytes) + " B";
}

}  // namespace

std::vector<std::string> refusal_lines(const std::vector<Refusal>& refusals,
                                       const std::string& kernel) {
  std::vector<std::pair<std::string, std::string>> groups;  // reason, kernels
  for (const Refusal& r : refusals) {
    if (!kernel.empty() && r.kernel != kernel) continue;
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == r.reason; });
    if (same == groups.end()) {
      groups.emplace_back(r.reason, r.kernel);
    } else {
      same->second += ", " + r.kernel;
    }
  }
  std::vector<std::string> lines;
  lines.reserve(groups.size());
  for (auto& [reason, kernels] : groups) lines.push_back(kernels.append(": ").append(reason));
  return lines;
}

std::string_view pass_name(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

std::int64_t Plan::live_bytes() const {
  using Role = MemoryItem::Role;
  return bytes_of(memory, Role::input) + bytes_of(memory, Role::output) +
         (keeps_saved ? saved_bytes : 0);
}

std::int64_t Plan::peak_bytes() const {
  return live_bytes() + bytes_of(memory, MemoryItem::Role::gradient) + workspace_bytes;
}

std::string explain(const Plan& p) {
  std::string text = std::string(pass_name(p.pass)) + " on " + device_name(p.device) + ": " +
                     p.kernel + " (" + p.implementation + "), " + p.reason + "\n";
  if (p.block_m > 0)
    text += line("  tiles      %d x %d (query rows x keys), %d split%s\n", p.block_m, p.block_n,
                 p.splits, p.splits == 1 ? "" : "s");
  text += "  work       " + significant(p.flops * 1e-9, 4) + " GFLOP, " +
          significant(p.bytes_moved * 1e-9, 4) + " GB moved, predicted " +
          significant(p.predicted_ms, 4) + " ms\n";
  text += "  memory     " + bytes_text(p.live_bytes()) + " live before backward, " +
          bytes_text(p.peak_bytes()) + " peak\n";
  std::size_t name_width = 17, shape_width = 28;
  for (const MemoryItem& m : p.memory) {
    name_width = std::max(name_width, m.name.size());
    shape_width = std::max(shape_width, m.shape.size());
  }
  for (const MemoryItem& m : p.memory) {
    if (m.role == MemoryItem::Role::saved && !p.keeps_saved) continue;
    text += line("    %-9s %-*s %-*s %-9s %12s\n", role_name(m.role), static_cast<int>(name_width),
                 m.name.c_str(), static_cast<int>(shape_width), m.shape.c_str(),
                 std::string(dtype_name(m.dtype)).c_str(), bytes_text(m.bytes).c_str());
  }
  if (!p.refusals.empty()) text += "  passed over\n";
  for (const std::string& refusal : refusal_lines(p.refusals)) text += "    " + refusal + "\n";
  return text;
}

}  // namespace tilewise
