#include "bench/hindcast/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <orthant/error.h>

#include "core/base/text_file.h"

namespace orthant::hindcast {
namespace {

constexpr std::size_t longest_file = 16 << 20;  // bytes

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

CsvFile::CsvFile(std::string_view text, std::string where) : where_(std::move(where)) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.remove_prefix(3);
  }
  std::vector<std::string> fields(1);
  bool quoted = false, used = false;
  std::size_t line = 1, first_line = 1;
  const auto finish = [&] {
    if (used || fields.size() > 1) {
      for (std::string& field : fields) {
        field = trimmed(field);
      }
      if (header_.empty()) {
        header_ = std::move(fields);
      } else {
        require(fields.size() == header_.size(), "{}, line {}: {} fields, and the header has {}", where_, first_line,
                fields.size(), header_.size());
        rows_.push_back(std::move(fields));
        lines_.push_back(first_line);
      }
    }
    fields.assign(1, "");
    used = false;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    line += c == '\n' ? 1 : 0;
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        fields.back() += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"' && fields.back().empty()) {
      quoted = used = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      finish();
      first_line = line;
    } else if (c != '\r') {
      fields.back() += c;
      used = true;
    }
  }
  require(!quoted, "{}, line {}: a quote is not closed", where_, first_line);
  finish();
  require(!header_.empty(), "{}: empty; the first line names the columns", where_);
  for (std::size_t i = 0; i < header_.size(); ++i) {
    require(std::find(header_.begin(), header_.begin() + static_cast<std::ptrdiff_t>(i), header_[i]) ==
                header_.begin() + static_cast<std::ptrdiff_t>(i),
            "{}: two columns are named '{}'", where_, header_[i]);
  }
}

std::optional<std::size_t> CsvFile::column_of(std::string_view column) const {
  const auto found = std::find(header_.begin(), header_.end(), column);
  return found == header_.end() ? std::nullopt : std::optional(static_cast<std::size_t>(found - header_.begin()));
}

const std::string& CsvFile::at(std::size_t row, std::string_view column) const {
  static const std::string nothing;
  const std::optional<std::size_t> index = column_of(column);
  return index ? rows_[row][*index] : nothing;
}

std::optional<double> CsvFile::number(std::size_t row, std::string_view column) const {
  const std::string& field = at(row, column);
  if (field.empty() || field == "?" || field == "n/a") {
    return std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  require(error == std::errc() && end == field.data() + field.size() && std::isfinite(value),
          "{}: '{}' in column '{}' is no number", place(row), field, column);
  return value;
}

std::optional<int> CsvFile::count_if_given(std::size_t row, std::string_view column, int least) const {
  const std::optional<double> value = number(row, column);
  if (!value) {
    return std::nullopt;
  }
  require(*value == std::floor(*value) && *value >= least && *value < 1e9,
          "{}: column '{}' must be a whole number of at least {}, and is {}", place(row), column, least, *value);
  return static_cast<int>(*value);
}

int CsvFile::count(std::size_t row, std::string_view column, int least) const {
  const std::optional<int> value = count_if_given(row, column, least);
  require(value.has_value(), "{}: column '{}' is {}; write a whole number of at least {}", place(row), column,
          has(column) ? "empty" : "missing", least);
  return *value;
}

std::string CsvFile::place(std::size_t row) const {
  return fmt::format("{}, line {}", where_, lines_[row]);
}

CsvFile read_csv(const std::string& path) {
  const std::optional<std::string> text = read_text_file(path, longest_file);
  require(text.has_value(), "{}: there is no such file", path);
  return CsvFile(*text, path);
}

}  // namespace orthant::hindcast
