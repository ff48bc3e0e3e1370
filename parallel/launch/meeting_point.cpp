#include "parallel/launch/meeting_point.h"

#include <orthant/error.h>
#include <orthant/hash.h>

#include <unistd.h>

#include <charconv>
#include <chrono>

namespace orthant {
namespace {

constexpr int first_port = 20000, ports = 10000;  // below those that Linux gives to outgoing connections

// The first host of Slurm's list: "gpu[03-07,9],other" is gpu03, and others.
std::string first_host(const std::string& nodes) {
  const std::size_t end = nodes.find_first_of(",[");
  std::string host = nodes.substr(0, end);
  if (end != std::string::npos && nodes[end] == '[') {
    host += nodes.substr(end + 1, nodes.find_first_of(",-]", end + 1) - end - 1);
    const std::size_t close = nodes.find(']', end);
    if (close != std::string::npos) {
      host += nodes.substr(close + 1, nodes.find(',', close) - close - 1);
    }
  }
  return host;
}

int parse_port(const std::string& text) {
  int port = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || stop != text.data() + text.size() || port < 1 || port > 65534) {
    throw ConfigError(fmt::format("MASTER_PORT={}: expected a port, 1 to 65534", text));
  }
  return port;
}

}  // namespace

std::optional<std::string> meeting_point(const EnvironmentLookup& environment,
                                         const std::optional<ExternalRank>& external) {
  if (auto given = environment("ORTHANT_RENDEZVOUS")) {
    return given;
  }
  if (!external) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    return fmt::format("unix:@orthant-{}-{:x}", getpid(), now);
  }
  const auto host = environment("MASTER_ADDR");
  const auto port = environment("MASTER_PORT");
  if (host && port) {
    const bool taken = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
    return fmt::format("{}:{}", *host, parse_port(*port) + (taken ? 1 : 0));
  }
  if (external->launcher == "Slurm") {
    const auto step = environment("SLURM_STEP_NODELIST");
    const auto nodes = step ? step : environment("SLURM_JOB_NODELIST");
    if (nodes) {
      return fmt::format("{}:{}", host ? *host : first_host(*nodes),
                         first_port + static_cast<int>(Hash64().add(external->run_key).value() % ports));
    }
  }
  if (external->launcher == "Open MPI" && external->on_one_machine) {
    return fmt::format("unix:@orthant-{}-{:x}", getuid(), Hash64().add(external->run_key).value());
  }
  return std::nullopt;
}

std::string meeting_point_on(const std::string& host, const EnvironmentLookup& environment) {
  return environment("ORTHANT_RENDEZVOUS").value_or(fmt::format("{}:{}", host, first_port + getpid() % ports));
}

}  // namespace orthant
