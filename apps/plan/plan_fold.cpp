// Many alike things as one line: parameters, numbers of ranks, collectives.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "apps/plan/plan_output.h"

namespace orthant {
namespace {

constexpr std::size_t longest_list = 4;  // of runs of numbers, written in full

// "layers.3.experts.12.w1" as {"layers.", ".experts.", ".w1"} and {3, 12}; w1 is a word, not a number.
struct Pattern {
  std::vector<std::string> texts;
  std::vector<int> numbers;
};

Pattern pattern_of(const std::string& name) {
  Pattern pattern;
  std::string text;
  for (std::size_t i = 0; i < name.size();) {
    const bool begins_word = i == 0 || name[i - 1] == '.';
    std::size_t end = i;
    while (begins_word && end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) {
      ++end;
    }
    int number = 0;
    if (end > i && (end == name.size() || name[end] == '.') &&
        std::from_chars(name.data() + i, name.data() + end, number).ec == std::errc()) {
      pattern.texts.push_back(std::move(text));
      pattern.numbers.push_back(number);
      text.clear();
      i = end;
    } else {
      text += name[i++];
    }
  }
  pattern.texts.push_back(std::move(text));
  return pattern;
}

std::string names_of(const std::vector<std::string>& texts, const std::vector<std::vector<int>>& numbers) {
  std::string name = texts.front();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    name += numbers[i].size() == 1 ? std::to_string(numbers[i].front()) : "{" + numbers_text(numbers[i]) + "}";
    name += texts[i + 1];
  }
  return name;
}

// Parameters that may share a line if their numbers allow it.
using Kind = std::tuple<std::vector<std::string>, std::vector<std::int64_t>, std::vector<std::int64_t>,
                        std::vector<std::int64_t>, std::vector<int>>;
struct Member {
  std::vector<int> numbers;
  const HeldParam* param;
};

// One line where the numbers are every combination of some first, some second, ... numbers; else a line for each.
void write_lines(const std::vector<std::string>& texts, const std::vector<Member>& members,
                 std::vector<FoldedParams>& lines) {
  const std::size_t places = texts.size() - 1;
  std::vector<std::vector<int>> values(places);
  std::size_t combinations = 1;
  for (std::size_t i = 0; i < places; ++i) {
    std::set<int> distinct;
    for (const Member& member : members) {
      distinct.insert(member.numbers[i]);
    }
    values[i].assign(distinct.begin(), distinct.end());
    combinations *= distinct.size();
  }
  if (combinations == members.size()) {
    lines.push_back({names_of(texts, values), static_cast<std::int64_t>(members.size()), members.front().param});
    return;
  }
  for (const Member& member : members) {
    lines.push_back({member.param->name, 1, member.param});
  }
}

}  // namespace

std::vector<FoldedParams> fold(const std::vector<HeldParam>& params) {
  std::map<Kind, std::vector<Member>> kinds;
  std::vector<const Kind*> order;
  for (const HeldParam& p : params) {
    Pattern pattern = pattern_of(p.name);
    const auto [found, fresh] =
        kinds.try_emplace({std::move(pattern.texts), p.global, p.offset, p.size, p.summed_over});
    if (fresh) {
      order.push_back(&found->first);
    }
    found->second.push_back({std::move(pattern.numbers), &p});
  }
  std::vector<FoldedParams> lines;
  for (const Kind* kind : order) {
    write_lines(std::get<0>(*kind), kinds.at(*kind), lines);
  }
  return lines;
}

std::string numbers_text(const std::vector<int>& numbers) {
  struct Run {
    int first, last;
    std::string text() const { return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last); }
  };
  std::vector<Run> runs;
  for (int n : numbers) {
    if (!runs.empty() && n == runs.back().last + 1) {
      runs.back().last = n;
    } else {
      runs.push_back({n, n});
    }
  }
  if (runs.empty()) {
    return "none";
  }
  std::vector<std::string> texts;
  for (const Run& run : runs) {
    texts.push_back(run.text());
  }
  if (runs.size() <= longest_list) {
    return fmt::format("{}", fmt::join(texts, ", "));
  }
  const int step = runs[1].first - runs[0].first;
  bool even = true;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    even = even && runs[i].first - runs[i - 1].first == step &&
           runs[i].last - runs[i].first == runs[0].last - runs[0].first;
  }
  return even ? fmt::format("{}, {}, .., {}", texts[0], texts[1], texts.back())
              : fmt::format("{}, {}, {}, .. ({} in all), {}", texts[0], texts[1], texts[2], numbers.size(),
                            texts.back());
}

std::vector<CollectiveSum> sum_collectives(const RankPlan& rank) {
  std::vector<CollectiveSum> sums;
  std::map<std::tuple<std::size_t, std::string, DType>, std::size_t> known;
  for (const CollectiveCall& call : rank.step.calls) {
    if (rank.step.groups[call.group].members.size() == 1) {
      continue;
    }
    const std::int64_t bytes = std::max(call.bytes_in, call.bytes_out);
    const auto [found, fresh] = known.try_emplace({call.group, call.operation, call.dtype}, sums.size());
    if (fresh) {
      sums.push_back({call.group, call.operation, call.dtype, 0, bytes, bytes, 0});
    }
    CollectiveSum& sum = sums[found->second];
    sum.count += call.times;
    sum.least = std::min(sum.least, bytes);
    sum.most = std::max(sum.most, bytes);
    sum.sent += call.times * call.bytes_sent;
  }
  return sums;
}

}  // namespace orthant
