#include "parallel/launch/hostfile.h"

#include <orthant/error.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

namespace orthant {
namespace {

bool is_in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  std::string folder;
  while (std::getline(folders, folder, ':')) {
    if (access((std::filesystem::path(folder) / program).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

int read_slots(const std::string& word, const std::string& where) {
  constexpr std::string_view kKey = "slots=";
  int slots = 0;
  if (word.starts_with(kKey)) {
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data() + kKey.size(), end, slots);
    if (error != std::errc() || stop != end) {
      slots = 0;
    }
  }
  constexpr int kMost = 1 << 20;  // as many as a layout may have ranks
  if (slots < 1 || slots > kMost) {
    throw ConfigError(
        fmt::format("{}: found '{}' after the host; expected slots=N with N from 1 to {}", where, word, kMost));
  }
  return slots;
}

}  // namespace

std::vector<Host> read_hostfile(const std::filesystem::path& file, Repeats repeats) {
  std::error_code ignored;
  if (std::filesystem::is_fifo(file, ignored) || std::filesystem::is_directory(file, ignored)) {
    throw ConfigError(fmt::format("the hostfile {} is no file: give one with lines 'host slots=N'", file.string()));
  }
  std::ifstream input(file);
  if (!input) {
    throw ConfigError(fmt::format("cannot read the hostfile {}: give a file with lines 'host slots=N'", file.string()));
  }
  std::vector<Host> hosts;
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    const std::string where = fmt::format("{}:{}", file.string(), number);
    Host host;
    std::string word;
    if (!(words >> host.name)) {
      continue;
    }
    if (words >> word) {
      host.slots = read_slots(word, where);
    }
    if (words >> word) {
      throw ConfigError(fmt::format("{}: found '{}' at the end; expected only 'host slots=N'", where, word));
    }
    if (host.name.starts_with('-')) {
      throw ConfigError(fmt::format(
          "{}: '{}' is no name of a host: ssh and mpirun take what begins with '-' for an option", where, host.name));
    }
    const auto same =
        std::find_if(hosts.begin(), hosts.end(), [&](const Host& other) { return other.name == host.name; });
    if (same != hosts.end() && repeats == Repeats::add_up) {
      same->slots += host.slots;
      continue;
    }
    if (same != hosts.end()) {
      throw ConfigError(
          fmt::format("{}: the host '{}' stands here a second time; write its slots in one line", where, host.name));
    }
    hosts.push_back(host);
  }
  if (hosts.empty()) {
    throw ConfigError(fmt::format("the hostfile {} names no host: write lines 'host slots=N'", file.string()));
  }
  return hosts;
}

std::filesystem::path allocated_hosts(const EnvironmentLookup& environment) {
  for (const char* variable : {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"}) {
    if (const auto file = environment(variable); file && environment("SLURM_JOB_ID") == std::nullopt) {
      return *file;
    }
  }
  return {};
}

std::vector<std::string> mpirun_command(const std::filesystem::path& hostfile, int world_size,
                                        const std::vector<std::string>& exported,
                                        const std::vector<std::string>& rank_command, Repeats repeats) {
  std::int64_t slots = hostfile.empty() ? world_size : 0;
  for (const Host& host : hostfile.empty() ? std::vector<Host>() : read_hostfile(hostfile, repeats)) {
    slots += host.slots;
  }
  if (slots < world_size) {
    throw ConfigError(fmt::format("{} has {} slots for {} ranks: add slots, or make the layout smaller",
                                  hostfile.string(), slots, world_size));
  }
  if (!is_in_path("mpirun")) {
    throw ConfigError("these ranks are started by mpirun, which is not in PATH: apt install openmpi-bin");
  }
  std::vector<std::string> command = {"mpirun", "-np", std::to_string(world_size)};
  if (hostfile.empty()) {
    command.emplace_back("--oversubscribe");  // more ranks than cores, as with the local communicator
  } else {
    command.insert(command.end(), {"--hostfile", hostfile.string()});
  }
  if (geteuid() == 0) {
    command.emplace_back("--allow-run-as-root");  // asked for by running the launcher as root, in a container mostly
  }
  for (const std::string& variable : exported) {
    command.insert(command.end(), {"-x", variable});
  }
  command.insert(command.end(), rank_command.begin(), rank_command.end());
  return command;
}

}  // namespace orthant
