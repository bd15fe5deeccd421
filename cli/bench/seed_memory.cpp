#include "cli/bench/seed_memory.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/bench/published.h"
#include "cli/shell/args.h"
#include "cli/shell/table.h"
#include "plan/accounting.h"

namespace tilewise::cli {
namespace {

constexpr double kGib = 1073741824.0;

std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

/// The seeds' question: why does the smallest size that fails fail, and how does memory grow?
std::string accounting(int row_statistics, const BlasWorkspaces& workspaces) {
  constexpr std::int64_t kBatch = 8;
  constexpr std::int64_t kDim = 16;
  constexpr std::int64_t kSeq = 16384;
  const std::int64_t elements = kBatch * kSeq * kSeq;
  const double matrix_gib = static_cast<double>(elements) * 4.0 / kGib;
  const auto live_mb = [&](std::int64_t seq) {
    return mebibytes(total_bytes(seed_memory(kBatch, seq, kDim, row_statistics, workspaces)));
  };
  return fmt::format(
      "Smallest size that runs out of memory: batch {}, seq {}, dim {}.\n"
      "  S has {} x {} x {} = {} elements: {:.1f} GiB in float32.\n"
      "  S and P, kept for the backward: {:.0f} GiB; with the backward's dP: {:.0f} GiB.\n"
      "  Live memory grows from {:.1f} MB at 4096 to {:.1f} MB at 8192, from 1 to 4 GB: {:.2f} "
      "times\n"
      "  for twice the length. Keeping O and LSE alone (flash) makes it linear: {:.0f} MB at {}.\n",
      kBatch, kSeq, kDim, kBatch, kSeq, kSeq, grouped(elements), matrix_gib, 2.0 * matrix_gib,
      3.0 * matrix_gib, live_mb(4096), live_mb(8192), live_mb(8192) / live_mb(4096),
      mebibytes(4 * (4 * kBatch * kSeq * kDim + kBatch * kSeq)), kSeq);
}

}  // namespace

std::vector<MemoryItem> seed_memory(std::int64_t batch, std::int64_t seq, std::int64_t dim,
                                    int row_statistics, const BlasWorkspaces& workspaces) {
  using Role = MemoryItem::Role;
  std::vector<MemoryItem> items;
  const auto add = [&](const char* name, Role role, const std::vector<std::int64_t>& shape) {
    items.push_back(memory_item(name, role, DType::float32, shape));
  };
  for (const char* name : {"Q", "K", "V"}) add(name, Role::input, {batch, seq, dim});
  add("O", Role::output, {batch, seq, dim});
  add("temporary", Role::saved, {batch, seq, dim});
  add("S", Role::saved, {batch, seq, seq});
  add("P", Role::saved, {batch, seq, seq});
  add("statistics", Role::saved, {row_statistics, batch, seq});
  MemoryItem blas = memory_item("cuBLAS", Role::workspace, DType::uint8,
                                {workspaces.count, workspaces.bytes_each});
  items.push_back(std::move(blas));
  return items;
}

std::int64_t total_bytes(const std::vector<MemoryItem>& items) {
  std::int64_t bytes = 0;
  for (const MemoryItem& item : items) bytes += item.bytes;
  return bytes;
}

std::string seed_memory_markdown(const std::string& preset, const BlasWorkspaces& workspaces) {
  const Value& seed = published().at(preset);
  const int row_statistics = seed.at("row_statistics").get<int>();
  std::vector<Column> columns = {{"seq_len"}, {"d_model"}};
  for (const MemoryItem& item : seed_memory(1, 1, 1, row_statistics, workspaces)) {
    columns.push_back({item.name, 2});
  }
  columns.insert(columns.end(), {{"total", 2}, {"published", 1}, {"difference", 2}});
  Table table(columns);
  int cells = 0;
  double worst = 0.0;
  for (const Value& row : seed.at("rows")) {
    const auto seq = row.at("seq_len").get<std::int64_t>();
    const auto dim = row.at("d_model").get<std::int64_t>();
    const auto batch = row.at("batch_size").get<std::int64_t>();
    std::vector<Value> line = {seq, dim};
    const std::vector<MemoryItem> items = seed_memory(batch, seq, dim, row_statistics, workspaces);
    for (const MemoryItem& item : items) line.push_back(mebibytes(item.bytes));
    const double total = mebibytes(total_bytes(items));
    line.push_back(total);
    if (row.at("status") == "ok") {
      const double measured = row.at("memory_mb").get<double>();
      line.insert(line.end(), {measured, total - measured});
      worst = std::max(worst, std::abs(total - measured));
      ++cells;
    } else {
      line.insert(line.end(), {"OOM", Value()});
    }
    table.add(std::move(line));
  }
  return fmt::format(
      "{}: memory alive before the backward (MB of 2^20 bytes, batch 8, float32)\n\n"
      "{}\nAll {} published cells are reproduced to {:.2f} MB.\n\n{}",
      seed.at("source").get<std::string>(), table.markdown(), cells, worst,
      accounting(row_statistics, workspaces));
}

}  // namespace tilewise::cli
