#include "core/data/json_rows.h"

#include <orthant/error.h>

#include <algorithm>
#include <string_view>

#include "core/data/lines.h"
#include "core/data/not_text.h"

namespace orthant {
namespace {

constexpr std::string_view json_blanks = " \t\r\n";

// Cuts the elements of an array: a comma or a bracket of its own ends one.
class ArrayCutter {
 public:
  ArrayCutter(std::string_view text, std::size_t begin, const std::string& path)
      : text_(text), at_(begin + 1), path_(path) {}

  std::vector<Document> cut() {
    std::vector<Document> elements;
    for (bool first = true;; first = false) {
      skip_blanks();
      if (first && at_ < text_.size() && text_[at_] == ']') {
        break;
      }
      const std::size_t begin = at_;
      skip_element();
      if (at_ == begin) {
        refuse(begin, "an element of the array that begins the file was expected");
      }
      const std::size_t end = text_.find_last_not_of(json_blanks, at_ - 1) + 1;
      elements.push_back({static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
      if (text_[at_] == ']') {
        break;
      }
      ++at_;
    }
    ++at_;
    skip_blanks();
    if (at_ < text_.size()) {
      refuse(at_,
             "the array that begins the file has ended, and something follows; where each line is a row of its "
             "own, a row is an object");
    }
    return elements;
  }

 private:
  void skip_blanks() { at_ = std::min(text_.find_first_not_of(json_blanks, at_), text_.size()); }

  // Up to the comma or the bracket behind it.
  void skip_element() {
    std::size_t depth = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        skip_text();
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (depth == 0 && (c == ',' || c == ']')) {
        return;
      } else if ((c == '}' || c == ']') && depth > 0) {
        --depth;
      }
    }
    refuse(text_.size(), "the array that begins the file has no end: was the file cut short?");
  }

  void skip_text() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      at_ += text_[at_] == '\\' ? 1 : 0;
    }
  }

  [[noreturn]] void refuse(std::size_t at, const char* why) const {
    const auto lines =
        std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(std::min(at, text_.size())), '\n');
    throw ConfigError(fmt::format("'{}', line {}: {}", path_, lines + 1, why));
  }

  std::string_view text_;
  std::size_t at_;
  const std::string& path_;
};

}  // namespace

std::vector<Document> json_rows(std::span<const std::byte> bytes, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t mark = byte_order_mark(text), first = text.find_first_not_of(json_blanks, mark);
  if (first != std::string_view::npos && text[first] == '[') {
    return ArrayCutter(text, first, path).cut();
  }
  std::vector<Document> rows;
  for_each_line(text.substr(mark), [&](std::string_view line, std::int64_t) {
    const std::int64_t begin = line.data() - text.data();
    rows.push_back({begin, begin + static_cast<std::int64_t>(line.size())});
  });
  return rows;
}

}  // namespace orthant
