#include "core/config/diagnostics.h"

#include <fmt/format.h>

#include <orthant/error.h>
#include <algorithm>
#include <limits>
#include <tuple>

namespace orthant {
namespace {

constexpr std::size_t most_shown = 50;      // problems; a longer list helps nobody
constexpr std::size_t window = 100;         // characters of a line that are shown
constexpr std::size_t before_caret = 60;    // of them, at most so many before the caret
constexpr std::size_t longest_caret = 100;  // characters underlined

// The first `most` characters of a line, each as its bytes. Bytes that are no UTF-8, and controls other than tab,
// become '?'.
std::vector<std::string> characters(std::string_view line, std::size_t most) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < line.size() && result.size() < most;) {
    const auto byte = static_cast<unsigned char>(line[i]);
    std::size_t length = byte < 0x80 ? 1 : byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 0;
    bool good = length > 0 && byte < 0xf5 && i + length <= line.size();
    for (std::size_t k = 1; good && k < length; ++k) {
      good = (static_cast<unsigned char>(line[i + k]) & 0xc0) == 0x80;
    }
    const bool control = byte < 0x20 || byte == 0x7f;
    if (!good) {
      length = 1;
    }
    result.push_back(good && (!control || byte == '\t') ? std::string(line.substr(i, length)) : "?");
    i += length;
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string result;
  const std::vector<std::string> all = characters(text, longest + 1);
  for (std::size_t i = 0; i < std::min(all.size(), longest); ++i) {
    result += all[i] == "\t" ? " " : all[i];
  }
  return result + (all.size() > longest ? "..." : "");
}

std::string in_quotes(std::string_view text, char quote) {
  return quote + printable(text) + quote;
}

void Diagnostics::add(const std::string& origin, const std::string& message, const std::string& advice) {
  if (known_.emplace(origin, message).second) {
    items_.push_back({origin, message, advice});
  }
}

std::string Diagnostics::render(const Item& item) const {
  std::string advice = item.advice.empty() ? "" : fmt::format("    = {}\n", item.advice);
  const auto place = sources_->find(item.origin);
  if (!place) {
    const std::string name = sources_->empty() ? "configuration" : sources_->name(0);
    return fmt::format("{}: {}\n{}", name, item.message, advice);
  }
  const std::size_t column = static_cast<std::size_t>(std::max(place->column, 1)) - 1;
  const std::size_t first = column > before_caret ? column - before_caret : 0;
  const std::vector<std::string> line = characters(sources_->line(place->file, place->line), first + window + 1);
  std::string shown = first > 0 ? "..." : "";
  std::string under = first > 0 ? "   " : "";
  for (std::size_t i = first; i < std::min(line.size(), first + window); ++i) {
    shown += line[i];
  }
  if (first + window < line.size()) {
    shown += "...";
  }
  for (std::size_t i = first; i < column; ++i) {
    under += i < line.size() && line[i] == "\t" ? "\t" : " ";  // a tab stays one, so that the caret stays below
  }
  const std::size_t left = std::max<std::size_t>(std::min(line.size(), first + window), column + 1) - column;
  under.append(
      std::clamp<std::size_t>(static_cast<std::size_t>(std::max(place->length, 1)), 1, std::min(left, longest_caret)),
      '^');
  return fmt::format("{}: {}\n    | {}\n    | {}\n{}", item.origin, item.message, shown, under, advice);
}

std::string Diagnostics::render() const {
  constexpr int last = std::numeric_limits<int>::max();
  std::vector<std::pair<std::tuple<int, int, int, std::size_t>, const Item*>> order;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const auto place = sources_->find(items_[i].origin);
    order.push_back(
        {place ? std::tuple(place->file, place->line, place->column, i) : std::tuple(last, last, last, i), &items_[i]});
  }
  std::sort(order.begin(), order.end());
  std::string text;
  for (std::size_t i = 0; i < std::min(order.size(), most_shown); ++i) {
    text += render(*order[i].second) + (i + 1 < order.size() ? "\n" : "");
  }
  if (order.size() > most_shown) {
    text += fmt::format("and {} more\n", order.size() - most_shown);
  }
  return text;
}

void Diagnostics::add(const Diagnostics& others) {
  for (const Item& item : others.items_) {
    add(item.origin, item.message, item.advice);
  }
}

void Diagnostics::throw_if_any() const {
  if (!items_.empty()) {
    throw RefusedConfig(
        fmt::format("the configuration has {} error{}\n\n{}", items_.size(), items_.size() == 1 ? "" : "s", render()),
        *this);
  }
}

}  // namespace orthant
