#include "parallel/launch/memory_kills.h"

#include <fmt/format.h>

#include <fstream>
#include <initializer_list>

namespace orthant {
namespace {

// The number behind `key` in a file of "key number" lines.
std::optional<std::int64_t> number_in(const std::filesystem::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  for (std::int64_t value = 0; in >> name >> value;) {
    if (name == key) {
      return value;
    }
  }
  return std::nullopt;
}

// The lines of /proc/self/cgroup are "number:controllers:/path"; version 2 has one, "0::/path".
std::optional<std::int64_t> kills_in_group(const std::filesystem::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(":/", first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 2);
    const std::filesystem::path groups = root / "sys/fs/cgroup";
    std::optional<std::int64_t> found;
    if (controllers == ",,") {
      found = number_in(groups / path / "memory.events", "oom_kill");
    } else if (controllers.find(",memory,") != std::string::npos) {
      found = number_in(groups / "memory" / path / "memory.oom_control", "oom_kill");
    }
    if (found) {
      return found;
    }
  }
  return std::nullopt;
}

bool has_risen(const std::optional<std::int64_t>& before, const std::optional<std::int64_t>& after) {
  return before && after && *after > *before;
}

}  // namespace

MemoryKills count_memory_kills(const std::filesystem::path& root) {
  return {kills_in_group(root), number_in(root / "proc/vmstat", "oom_kill")};
}

KillAccount account_of_kill(const MemoryKills& before, const MemoryKills& after) {
  if (has_risen(before.in_group, after.in_group)) {
    return {true,
            fmt::format("out of memory: the kernel killed {} process(es) of this job meanwhile, at the limit of its "
                        "control group (oom_kill in memory.events). Give the job more memory, or the ranks less work",
                        *after.in_group - *before.in_group)};
  }
  if (has_risen(before.on_machine, after.on_machine)) {
    return {true,
            fmt::format("out of memory: the kernel killed {} process(es) on this machine meanwhile for lack of memory "
                        "(oom_kill in /proc/vmstat; dmesg names them)",
                        *after.on_machine - *before.on_machine)};
  }
  return {false,
          "the launcher did not kill it. Was it out of memory (dmesg, the job's limit), or did somebody kill it?"};
}

}  // namespace orthant
