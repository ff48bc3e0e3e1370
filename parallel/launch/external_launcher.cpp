#include "parallel/launch/external_launcher.h"

#include <orthant/error.h>

#include <charconv>
#include <cstdlib>

namespace orthant {
namespace {

struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
};

constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Names kSlurm = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"};

int read_number(const EnvironmentLookup& environment, const char* name, const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    throw ConfigError(
        fmt::format("the environment variable {} is '{}'; expected a whole number that is not negative. "
                    "Unset it, or start the ranks with a launcher that sets it",
                    name, *environment(name)));
  }
  return value;
}

// All three variables, or none of them.
std::optional<ExternalRank> read_names(const EnvironmentLookup& environment, const Names& names) {
  const auto rank = environment(names.rank);
  const auto world_size = environment(names.world_size);
  const auto local_rank = environment(names.local_rank);
  if (!rank && !local_rank) {
    return std::nullopt;  // a lone WORLD_SIZE or SLURM_NTASKS is what an allocation leaves, not a rank
  }
  const std::pair<const char*, bool> given[] = {{names.rank, rank.has_value()},
                                                {names.world_size, world_size.has_value()},
                                                {names.local_rank, local_rank.has_value()}};
  for (const auto& [name, present] : given) {
    if (!present) {
      throw ConfigError(
          fmt::format("some variables of {} are set but not {}: expected {}, {} and {} together. "
                      "Set all of them or none",
                      names.launcher, name, names.rank, names.world_size, names.local_rank));
    }
  }
  ExternalRank found;
  found.launcher = names.launcher;
  found.rank = read_number(environment, names.rank, *rank);
  found.world_size = read_number(environment, names.world_size, *world_size);
  found.local_rank = read_number(environment, names.local_rank, *local_rank);
  if (found.rank >= found.world_size || found.local_rank > found.rank) {
    throw ConfigError(fmt::format("{}={}, {}={}, {}={} do not fit together: expected {} < {} and {} <= {}", names.rank,
                                  found.rank, names.world_size, found.world_size, names.local_rank, found.local_rank,
                                  names.rank, names.world_size, names.local_rank, names.rank));
  }
  return found;
}

// In a batch script (not under srun) Slurm describes the script itself as task 0: that is no rank.
bool is_batch_script(const EnvironmentLookup& environment) {
  return environment("SLURM_JOB_ID") && !environment("SLURM_STEP_ID") && !environment("SLURM_STEPID");
}

// The outer launcher started one torchrun per node.
bool starts_one_torchrun_per_node(const EnvironmentLookup& environment, const ExternalRank& outer) {
  const auto nodes = environment("GROUP_WORLD_SIZE");
  const auto node = environment("GROUP_RANK");
  return nodes && node && *nodes == std::to_string(outer.world_size) && *node == std::to_string(outer.rank);
}

[[noreturn]] void refuse(const Names& a, const ExternalRank& first, const Names& b, const ExternalRank& second) {
  throw ConfigError(fmt::format(
      "{} says rank {} of {} ({}={}, {}={}) but {} says rank {} of {} ({}={}, {}={}). "
      "Unset the variables of the one that did not start these ranks",
      first.launcher, first.rank, first.world_size, a.rank, first.rank, a.world_size, first.world_size, second.launcher,
      second.rank, second.world_size, b.rank, second.rank, b.world_size, second.world_size));
}

bool agree(const ExternalRank& a, const ExternalRank& b) {
  return a.rank == b.rank && a.world_size == b.world_size;
}

bool is(const std::optional<std::string>& value, int number) {
  return value && *value == std::to_string(number);
}

int size_in(const EnvironmentLookup& environment, const char* name) {
  const auto text = environment(name);
  return text ? read_number(environment, name, *text) : 0;
}

std::string joined(const EnvironmentLookup& environment, std::initializer_list<const char*> names) {
  std::string key;
  for (const char* name : names) {
    key += environment(name).value_or("") + ".";
  }
  return key;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

EnvironmentLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') {
      return std::nullopt;
    }
    return std::string(value);
  };
}

std::string ExternalRank::describe() const {
  const Names& names = launcher == kTorchrun.launcher ? kTorchrun : launcher == kOpenMpi.launcher ? kOpenMpi : kSlurm;
  return fmt::format("rank {} of {}, started by {} ({}, {}, {})", rank, world_size, launcher, names.rank,
                     names.world_size, names.local_rank);
}

std::optional<ExternalRank> find_external_rank(const EnvironmentLookup& environment) {
  auto torchrun = read_names(environment, kTorchrun);
  auto openmpi = read_names(environment, kOpenMpi);
  std::optional<ExternalRank> slurm;
  if (!is_batch_script(environment)) {
    slurm = read_names(environment, kSlurm);
  }

  if (torchrun) {
    if (!environment("MASTER_ADDR") || !environment("MASTER_PORT")) {
      throw ConfigError(
          "torchrun's RANK, WORLD_SIZE and LOCAL_RANK are set but not MASTER_ADDR and MASTER_PORT: "
          "set all five or none");
    }
    if (openmpi && !agree(*torchrun, *openmpi) && !starts_one_torchrun_per_node(environment, *openmpi)) {
      refuse(kTorchrun, *torchrun, kOpenMpi, *openmpi);
    }
    if (slurm && !agree(*torchrun, *slurm) && !starts_one_torchrun_per_node(environment, *slurm)) {
      refuse(kTorchrun, *torchrun, kSlurm, *slurm);
    }
    torchrun->run_key =
        "torchrun." + joined(environment, {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
    // Ranks that meet at an address of the machine itself are all on it.
    torchrun->local_size = !environment("LOCAL_WORLD_SIZE") && is_loopback(*environment("MASTER_ADDR"))
                               ? torchrun->world_size
                               : size_in(environment, "LOCAL_WORLD_SIZE");
    torchrun->on_one_machine = torchrun->local_size == torchrun->world_size;
    torchrun->known_to_mpi = (openmpi && agree(*torchrun, *openmpi)) || (slurm && agree(*torchrun, *slurm));
    return torchrun;
  }
  if (openmpi) {
    // Inside a Slurm job mpirun starts its daemons by srun: Slurm's numbers then count daemons.
    if (slurm && !agree(*openmpi, *slurm) && !environment("SLURM_JOB_ID")) {
      refuse(kOpenMpi, *openmpi, kSlurm, *slurm);
    }
    openmpi->run_key =
        "openmpi." + joined(environment, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"});
    openmpi->local_size = size_in(environment, "OMPI_COMM_WORLD_LOCAL_SIZE");
    openmpi->on_one_machine = openmpi->local_size == openmpi->world_size;
    openmpi->known_to_mpi = true;
    return openmpi;
  }
  if (slurm) {
    slurm->run_key = "slurm." + joined(environment, {"SLURM_JOB_ID", "SLURM_STEP_ID"});
    const auto nodes = environment("SLURM_STEP_NUM_NODES");
    slurm->on_one_machine = is(nodes ? nodes : environment("SLURM_NNODES"), 1);
    slurm->local_size = slurm->on_one_machine ? slurm->world_size : 0;
    slurm->known_to_mpi = true;
  }
  return slurm;
}

}  // namespace orthant
