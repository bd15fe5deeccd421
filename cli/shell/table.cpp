#include "cli/shell/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "cli/shell/args.h"
#include "plan/significant.h"

namespace tilewise::cli {
namespace {

/// Width up to which texts of the last column are padded.
constexpr std::size_t kLongText = 40;

/// Columns of a terminal that UTF-8 text takes: one a code point, which holds for all text of ours.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(std::string_view text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + std::string(text) : std::string(text) + space;
}

std::string csv_field(std::string text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string markdown_field(std::string text) {
  for (std::size_t at = 0; (at = text.find_first_of("|\n", at)) != std::string::npos; at += 2) {
    text.replace(at, 1, text[at] == '|' ? "\\|" : "; ");
  }
  return text;
}

}  // namespace

Format parse_format(std::string_view option, std::string_view text) {
  check_one_of(option, text, {"md", "csv", "json"});
  return text == "md" ? Format::markdown : text == "csv" ? Format::csv : Format::json;
}

void Table::add(std::vector<Value> cells) {
  assert(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::cell_text(const Value& value, const Column& column) const {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (column.decimals == Column::kScientific) return fmt::format("{:.1e}", number);
    const bool tiny = number != 0.0 && std::abs(number) < 0.5 * std::pow(10.0, -column.decimals);
    return tiny ? significant(number, 1) : fmt::format("{:.{}f}", number, column.decimals);
  }
  return value.dump();
}

std::string Table::markdown() const {
  const std::size_t columns = columns_.size();
  std::vector<std::size_t> widths(columns);
  std::vector<bool> right(columns, true);
  std::vector<std::vector<std::string>> lines;
  for (std::size_t c = 0; c < columns; ++c) {
    widths[c] = std::max<std::size_t>(3, width_of(columns_[c].name));
  }
  for (const std::vector<Value>& row : rows_) {
    std::vector<std::string>& line = lines.emplace_back();
    for (std::size_t c = 0; c < columns; ++c) {
      line.push_back(markdown_field(cell_text(row[c], columns_[c])));
      widths[c] = std::max(widths[c], width_of(line[c]));
    }
  }
  // A column is of numbers when it holds one; "OOM" among numbers does not make it text.
  for (std::size_t c = 0; c < columns; ++c) {
    right[c] = std::any_of(rows_.begin(), rows_.end(),
                           [&](const std::vector<Value>& row) { return row[c].is_number(); });
  }
  // Padding a last column of long texts would only widen every line.
  if (columns > 0 && !right.back()) {
    widths.back() = std::min(widths.back(), std::max(kLongText, width_of(columns_.back().name)));
  }
  std::string out = "|";
  for (std::size_t c = 0; c < columns; ++c) {
    out += fmt::format(" {} |", padded(columns_[c].name, widths[c], right[c]));
  }
  out += "\n|";
  for (std::size_t c = 0; c < columns; ++c) {
    const std::string dashes(widths[c] + 1, '-');
    out += right[c] ? dashes + ":|" : ":" + dashes + "|";
  }
  out += '\n';
  for (const std::vector<std::string>& line : lines) {
    out += '|';
    for (std::size_t c = 0; c < columns; ++c) {
      out += fmt::format(" {} |", padded(line[c], widths[c], right[c]));
    }
    out += '\n';
  }
  return out;
}

std::string Table::csv() const {
  std::string out;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    out += (c > 0 ? "," : "") + csv_field(columns_[c].name);
  }
  out += '\n';
  for (const std::vector<Value>& row : rows_) {
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      out += (c > 0 ? "," : "") + csv_field(cell_text(row[c], columns_[c]));
    }
    out += '\n';
  }
  return out;
}

Value Table::json() const {
  Value out = Value::array();
  for (const std::vector<Value>& row : rows_) {
    Value object = Value::object();
    for (std::size_t c = 0; c < columns_.size(); ++c) object[columns_[c].name] = row[c];
    out.push_back(std::move(object));
  }
  return out;
}

std::string Table::text(Format format) const {
  switch (format) {
    case Format::markdown:
      return markdown();
    case Format::csv:
      return csv();
    case Format::json:
      break;
  }
  return json().dump(2) + "\n";
}

std::size_t Table::index_of(const std::string& name) const {
  const auto at = std::find_if(columns_.begin(), columns_.end(),
                               [&](const Column& column) { return column.name == name; });
  assert(at != columns_.end());
  return static_cast<std::size_t>(at - columns_.begin());
}

void Table::drop(const std::string& name) {
  const auto at = static_cast<std::ptrdiff_t>(index_of(name));
  columns_.erase(columns_.begin() + at);
  for (std::vector<Value>& row : rows_) row.erase(row.begin() + at);
}

void Table::drop_copy(const std::string& name, const std::string& of) {
  const std::size_t copy = index_of(name);
  const std::size_t original = index_of(of);
  const bool same = std::all_of(rows_.begin(), rows_.end(), [&](const std::vector<Value>& row) {
    return row[copy] == row[original];
  });
  if (same) drop(name);
}

Table Table::without_constants(const std::vector<std::string>& keep,
                               std::vector<std::string>& constant) const {
  std::vector<std::size_t> kept;
  Table out({});
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const bool same = std::all_of(rows_.begin(), rows_.end(), [&](const std::vector<Value>& row) {
      return row[c] == rows_.front()[c];
    });
    const std::string& name = columns_[c].name;
    if (!same || std::find(keep.begin(), keep.end(), name) != keep.end()) {
      kept.push_back(c);
      out.columns_.push_back(columns_[c]);
    } else if (!rows_.empty() && !cell_text(rows_.front()[c], columns_[c]).empty()) {
      constant.push_back(fmt::format("{} {}", name, cell_text(rows_.front()[c], columns_[c])));
    }
  }
  for (const std::vector<Value>& row : rows_) {
    std::vector<Value>& cells = out.rows_.emplace_back();
    for (const std::size_t c : kept) cells.push_back(row[c]);
  }
  return out;
}

}  // namespace tilewise::cli
