/// One printer for every table: the same rows as aligned Markdown, CSV or JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::cli {

/// A cell: text, a whole number, a real number, a bool, or null for "nothing".
using Value = nlohmann::ordered_json;

enum class Format { markdown, csv, json };

/// "md", "csv" or "json"; throws BadInput.
Format parse_format(std::string_view option, std::string_view text);

struct Column {
  std::string name;
  int decimals = 3;  ///< of real numbers, in Markdown and CSV; kScientific: "1.2e-07"
  static constexpr int kScientific = -1;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// As many cells as there are columns.
  void add(std::vector<Value> cells);
  bool empty() const { return rows_.empty(); }

  std::string markdown() const;
  std::string csv() const;
  /// An array of objects, one a row, their fields in the order of the columns.
  Value json() const;
  std::string text(Format format) const;

  /// Removes a column.
  void drop(const std::string& name);

  /// Removes the column `name` when every row has the same there as in the column `of`.
  void drop_copy(const std::string& name, const std::string& of);

  /// This table without the columns that say the same in every row (`keep` names those that stay
  /// anyway); those are returned in `constant` as "name value".
  Table without_constants(const std::vector<std::string>& keep,
                          std::vector<std::string>& constant) const;

 private:
  std::size_t index_of(const std::string& name) const;
  std::string cell_text(const Value& value, const Column& column) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Value>> rows_;
};

}  // namespace tilewise::cli
