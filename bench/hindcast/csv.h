// Comma-separated values with a header (RFC 4180), read without trust.
//
// Thread safety: pure functions; a CsvFile is read-only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orthant::hindcast {

class CsvFile {
 public:
  // Errors: Error naming `where` and the line: no header, a column twice, a line with more or fewer fields than the
  // header, a quote that is not closed.
  CsvFile(std::string_view text, std::string where);

  const std::string& where() const { return where_; }
  std::size_t rows() const { return rows_.size(); }
  bool has(std::string_view column) const { return column_of(column).has_value(); }
  // The field without surrounding blanks; empty where there is no such column.
  const std::string& at(std::size_t row, std::string_view column) const;
  // Nothing for an empty field, "?" and "n/a". Errors: Error naming file, line and column for what is no finite number.
  std::optional<double> number(std::size_t row, std::string_view column) const;
  // Errors: as number(), and where the field is empty, not whole or below `least`.
  int count(std::size_t row, std::string_view column, int least = 1) const;
  std::optional<int> count_if_given(std::size_t row, std::string_view column, int least = 1) const;
  std::string place(std::size_t row) const;  // "file.csv, line 7"

 private:
  std::optional<std::size_t> column_of(std::string_view column) const;

  std::string where_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> lines_;
};

CsvFile read_csv(const std::string& path);

}  // namespace orthant::hindcast
