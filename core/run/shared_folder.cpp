#include "core/run/shared_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <orthant/error.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/host_name.h"
#include "core/checkpoint/appears.h"
#include "core/run/run_ids.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// A name that no host has looked for yet: network file systems remember which names were not there.
constexpr const char* token_prefix = ".seen_by_all_ranks.";
constexpr std::chrono::seconds time_to_appear{3};

// The file's path below the run folder; empty where it cannot be made.
std::string make_token(const fs::path& run_folder) {
  std::error_code failed;
  const bool saved_before = fs::is_directory(run_folder / "checkpoints", failed);
  fs::create_directories(run_folder, failed);
  const fs::path name = fs::path(saved_before ? "checkpoints" : "") / (token_prefix + new_id());
  const int file = ::open((run_folder / name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) {
    return "";
  }
  ::fsync(file);  // to the server, from where others look
  ::close(file);
  return name.string();
}

std::string place_of(const fs::path& run_folder) {
  std::error_code failed;
  const fs::path path = fs::absolute(run_folder, failed);
  return fmt::format("{} on {}", (failed ? run_folder : path).string(), host_name());
}

}  // namespace

void require_shared_folder(const fs::path& run_folder, Group& world, Stream& stream) {
  if (world.size() == 1) {
    return;
  }
  const bool first = world.rank() == 0;
  const std::string token = gather_texts(first ? make_token(run_folder) : "", world, stream).front();
  if (token.empty()) {
    return;
  }
  const bool seen = first || appears(run_folder / token, time_to_appear);
  const std::vector<std::string> places = gather_texts(place_of(run_folder) + (seen ? "+" : "-"), world, stream);
  if (first) {
    std::error_code ignored;
    fs::remove(run_folder / token, ignored);
  }
  std::map<std::string, std::vector<std::size_t>> others;  // that do not see it, by place
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank].ends_with('-')) {
      others[places[rank].substr(0, places[rank].size() - 1)].push_back(rank);
    }
  }
  if (others.empty()) {
    return;
  }
  std::vector<std::string> lines;
  for (const auto& [place, ranks] : others) {
    lines.push_back(fmt::format("rank{} {}: {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), place));
  }
  throw ConfigError(fmt::format(
      "the ranks do not see one run folder: what rank 0 writes to {} is not there for {}. Every rank writes "
      "its part of a checkpoint there: give a run.directory that all hosts share, by a path that is the "
      "same everywhere",
      places.front().substr(0, places.front().size() - 1), fmt::join(lines, "; ")));
}

}  // namespace orthant
