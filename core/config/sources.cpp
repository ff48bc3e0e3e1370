#include "core/config/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace orthant {

int Sources::add(const std::string& name, std::string text) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i].name == name) {
      return static_cast<int>(i);
    }
  }
  File file{name, std::move(text), {0}};
  for (std::size_t i = 0; i < file.text.size(); ++i) {
    if (file.text[i] == '\n') {
      file.starts.push_back(i + 1);
    }
  }
  files_.push_back(std::move(file));
  return static_cast<int>(files_.size()) - 1;
}

std::string Sources::origin(const Place& place) {
  std::string text = fmt::format("{}:{}:{}", name(place.file), place.line, place.column);
  Place& known = places_[text];
  known = {place.file, place.line, place.column, std::max(place.length, known.length)};
  return text;
}

std::optional<Sources::Place> Sources::find(const std::string& origin) const {
  const auto it = places_.find(origin);
  return it == places_.end() ? std::nullopt : std::optional(it->second);
}

std::string_view Sources::line(int file, int line) const {
  const File& source = files_.at(file);
  if (line < 1 || static_cast<std::size_t>(line) > source.starts.size()) {
    return {};
  }
  const std::size_t begin = source.starts[static_cast<std::size_t>(line) - 1];
  std::string_view rest = std::string_view(source.text).substr(begin);
  rest = rest.substr(0, rest.find('\n'));
  if (!rest.empty() && rest.back() == '\r') {
    rest.remove_suffix(1);
  }
  return rest;
}

}  // namespace orthant
