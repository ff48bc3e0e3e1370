// Whether the kernel killed processes for lack of memory, as far as it says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace orthant {

// How often it did so up to now; nothing where that cannot be read.
struct MemoryKills {
  std::optional<std::int64_t> in_group;    // in this process's control group: a limit of the job or the container
  std::optional<std::int64_t> on_machine;  // on the whole machine
};

// root: "/", or what stands for it in a test.
MemoryKills count_memory_kills(const std::filesystem::path& root = "/");

// What to say of a process that somebody else ended by SIGKILL between the two counts.
struct KillAccount {
  bool at_a_limit = false;  // of memory, as the counts say, or of processor time: the next start meets it too
  std::string text;
};
KillAccount account_of_kill(const MemoryKills& before, const MemoryKills& after);

}  // namespace orthant
