#include "parallel/launch/rank_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace orthant {

std::string rank_prefix(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) {
      ++end;
    }
    text += fmt::format("{}r{}", text.empty() ? "[" : " ", ranks[i]);
    text += end - i > 1 ? fmt::format("-r{}", ranks[end - 1]) : "";
    i = end;
  }
  return text + "] ";
}

RankLines::RankLines(Console& console, std::function<std::optional<RankFailure>()> failure)
    : console_(console), failure_(std::move(failure)) {}

void RankLines::output(int rank, std::string_view text) {
  console_.output_line(rank_prefix({rank}).append(text));
}

void RankLines::error(int rank, std::string_view text) {
  const std::optional<RankFailure> failure = failure_ ? failure_() : std::nullopt;
  if (!failure && !holds_) {
    console_.error_line(rank_prefix({rank}).append(text));
    return;
  }
  holds_ = true;
  const std::string reason = failure ? failure->why.substr(0, failure->why.find('\n')) : "";
  const bool repeats = !reason.empty() && rank != failure->rank && text.find(reason) != std::string_view::npos;
  for (Held& held : held_) {
    const bool again = std::find(held.ranks.begin(), held.ranks.end(), rank) != held.ranks.end();
    if (held.text == text && !again) {
      held.ranks.push_back(rank);
      return;
    }
    if (held.repeats && repeats) {
      held.others.push_back(rank);
      return;
    }
  }
  held_.push_back({std::string(text), {rank}, {}, repeats});
}

void RankLines::show_held() {
  for (Held& held : std::exchange(held_, {})) {
    if (held.repeats && std::exchange(reason_shown_, true)) {
      held.others.insert(held.others.end(), held.ranks.begin(), held.ranks.end());
    } else {
      console_.error_line(rank_prefix(held.ranks) + held.text);
    }
    if (!held.others.empty()) {
      console_.error_line(rank_prefix(held.others) + "gave up for the same reason");
    }
  }
}

}  // namespace orthant
