#include "apps/route/travel.h"

#include <orthant/error.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

namespace orthant {
namespace {

void require_divides(std::int64_t divisor, std::int64_t whole, const char* what, const char* among) {
  if (divisor <= 0 || whole % divisor != 0) {
    throw ConfigError(fmt::format("{} {} cannot be shared out equally among {} {}", whole, what, divisor, among));
  }
}

std::vector<int> places(const ExpertLayout& layout, std::size_t experts) {
  if (!layout.place_of_expert.empty()) {
    return layout.place_of_expert;
  }
  std::vector<int> place(experts);
  for (std::size_t e = 0; e < experts; ++e) {
    place[e] = static_cast<int>(e * static_cast<std::size_t>(layout.expert_ranks) / experts);
  }
  return place;
}

// The number of each expert among those of its place, and how many each place has.
std::vector<std::size_t> numbers_at(const std::vector<int>& place, std::vector<std::size_t>& held) {
  std::vector<std::size_t> number;
  for (const int at : place) {
    number.push_back(held.at(static_cast<std::size_t>(at))++);
  }
  return number;
}

// What a row costs on its way, there and back, forward and backward.
std::int64_t bytes_of_row(const ExpertLayout& layout, bool recomputed) {
  const std::int64_t row = layout.width * layout.element_bytes, weight = 4;
  return (recomputed ? 6 : 4) * row + 2 * weight;
}

// Counts of rows, i32, for each expert, that a rank tells the others of a group.
std::int64_t bytes_of_counts(std::int64_t experts, std::int64_t members) {
  return experts / members * (members - 1) * 4;
}

}  // namespace

std::vector<std::int64_t> Travel::rows_of_ranks() const {
  std::vector<std::int64_t> sums(rows.empty() ? 0 : rows.front().size(), 0);
  for (const auto& of_batch : rows) {
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      sums[rank] += std::accumulate(of_batch[rank].begin(), of_batch[rank].end(), std::int64_t{0});
    }
  }
  return sums;
}

Travel travel_of(const Decisions& made, const ExpertLayout& layout) {
  const auto experts = static_cast<std::int64_t>(made.load.size());
  const std::int64_t top_k = made.top_k, tokens = static_cast<std::int64_t>(made.kept.size()) / top_k;
  const auto batches = static_cast<std::int64_t>(layout.recomputed.size());
  const int node_ranks =
      layout.node_ranks == 0 ? layout.expert_ranks : std::min(layout.node_ranks, layout.expert_ranks);
  require_divides(layout.expert_ranks, layout.ranks, "ranks", "that share the experts");
  require_divides(node_ranks, layout.expert_ranks, "ranks that share the experts", "of a node");
  require_divides(layout.ranks * batches, tokens, "tokens of a step", "micro-batches of all ranks");
  if (layout.place_of_expert.empty()) {
    require_divides(layout.expert_ranks, experts, "experts", "ranks");
  }
  const std::vector<int> place = places(layout, static_cast<std::size_t>(experts));
  std::vector<std::size_t> held(static_cast<std::size_t>(layout.expert_ranks), 0);
  const std::vector<std::size_t> number = numbers_at(place, held);

  Travel travel;
  travel.rows.resize(static_cast<std::size_t>(batches));
  for (auto& of_batch : travel.rows) {
    for (int rank = 0; rank < layout.ranks; ++rank) {
      of_batch.emplace_back(held[static_cast<std::size_t>(rank % layout.expert_ranks)], 0);
    }
  }
  const std::int64_t of_rank = tokens / layout.ranks, of_batch = of_rank / batches;
  travel.tokens = of_batch;
  travel.top_k = top_k;
  for (std::int64_t choice = 0; choice < tokens * top_k; ++choice) {
    if (made.kept[static_cast<std::size_t>(choice)] == 0) {
      continue;
    }
    const auto expert = static_cast<std::size_t>(made.expert[static_cast<std::size_t>(choice)]);
    const std::int64_t token = choice / top_k, rank = token / of_rank;
    const auto batch = static_cast<std::size_t>(token % of_rank / of_batch);
    const int own = static_cast<int>(rank % layout.expert_ranks), there = place[expert];
    const auto host = static_cast<std::size_t>(rank - own + there);
    travel.rows[batch][host][number[expert]] += 1;
    const std::int64_t bytes = bytes_of_row(layout, layout.recomputed[batch]);
    const bool other_node = own / node_ranks != there / node_ranks;
    if (layout.two_levels) {
      travel.bytes_inside += own % node_ranks != there % node_ranks ? bytes : 0;
      travel.bytes_between += other_node ? bytes : 0;
    } else if (own != there) {
      (other_node ? travel.bytes_between : travel.bytes_inside) += bytes;
    }
  }
  // Counts, once a micro-batch on each rank.
  const std::int64_t times = layout.ranks * batches, nodes = layout.expert_ranks / node_ranks;
  if (layout.two_levels) {
    travel.bytes_inside += times * bytes_of_counts(experts, node_ranks);
    travel.bytes_between += times * bytes_of_counts(experts, nodes);
  } else {
    const std::int64_t each = experts / layout.expert_ranks * 4;
    travel.bytes_inside += times * each * (node_ranks - 1);
    travel.bytes_between += times * each * (layout.expert_ranks - node_ranks);
  }
  return travel;
}

std::vector<int> read_placement(const std::filesystem::path& file, std::int64_t experts, int expert_ranks) {
  std::ifstream in(file);
  std::error_code ignored;
  if (!in.is_open() || std::filesystem::is_directory(file, ignored)) {
    throw ConfigError(fmt::format("--placement {}: the file cannot be read", file.string()));
  }
  std::vector<int> place(static_cast<std::size_t>(experts), -1);
  int rank = 0;
  for (std::string line; std::getline(in, line); ++rank) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      std::int64_t expert = -1;
      std::istringstream number(word);
      const bool known = (number >> expert) && number.eof() && expert >= 0 && expert < experts;
      if (!known || rank >= expert_ranks || place[static_cast<std::size_t>(expert)] != -1) {
        throw ConfigError(fmt::format(
            "--placement {}: line {}: '{}': expected the experts of rank {}, each of 0 to {} on one of {} lines",
            file.string(), rank + 1, word, rank, experts - 1, expert_ranks));
      }
      place[static_cast<std::size_t>(expert)] = rank;
    }
  }
  const auto missing = std::find(place.begin(), place.end(), -1);
  if (missing != place.end()) {
    throw ConfigError(
        fmt::format("--placement {}: expert {} is on no line; write a line of experts for each of the {} "
                    "ranks that share them",
                    file.string(), missing - place.begin(), expert_ranks));
  }
  if (rank < expert_ranks) {
    throw ConfigError(
        fmt::format("--placement {}: it has {} lines, and {} ranks share the experts; write an empty line for a rank "
                    "that holds none",
                    file.string(), rank, expert_ranks));
  }
  return place;
}

}  // namespace orthant
