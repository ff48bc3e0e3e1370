#include "parallel/launch/external_launcher.h"

#include <orthant/error.h>

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <utility>
#include <vector>

namespace orthant {
namespace {

// The variables by which a launcher tells each process who it is. local_rank and local_size: nullptr where it has none.
struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kSlurm = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};
constexpr Names kFlux = {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr};
constexpr Names kJsrun = {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
                          "JSM_NAMESPACE_LOCAL_SIZE"};
constexpr Names kMpich = {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
// PyTorchJob of Kubeflow, and scripts that set torchrun's variables for one rank on each machine.
constexpr Names kPyTorchJob = {"PyTorchJob", "RANK", "WORLD_SIZE", nullptr, nullptr};
constexpr Names kIndexedJob = {"Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", nullptr, nullptr};
constexpr const Names* all_names[] = {&kTorchrun, &kOpenMpi, &kSlurm,      &kFlux,
                                      &kJsrun,    &kMpich,   &kPyTorchJob, &kIndexedJob};

const Names& names_of(const std::string& launcher) {
  for (const Names* names : all_names) {
    if (launcher == names->launcher) {
      return *names;
    }
  }
  fail("internal error: no launcher is called {}", launcher);
}

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

int size_in(const EnvironmentLookup& environment, const char* name) {
  const auto text = name == nullptr ? std::nullopt : environment(name);
  return text ? read_number(environment, name, *text) : 0;
}

std::string joined(const EnvironmentLookup& environment, std::initializer_list<const char*> names) {
  std::string key;
  for (const char* name : names) {
    key += environment(name).value_or("") + ".";
  }
  return key;
}

// What the variables say. local_rank 0 where none of them tells it.
ExternalRank read_values(const EnvironmentLookup& environment, const Names& names) {
  ExternalRank found;
  found.launcher = names.launcher;
  found.rank = read_number(environment, names.rank, *environment(names.rank));
  found.world_size = read_number(environment, names.world_size, *environment(names.world_size));
  found.local_rank = size_in(environment, names.local_rank);
  found.local_size = size_in(environment, names.local_size);
  if (found.rank >= found.world_size || found.local_rank > found.rank) {
    const std::string local =
        names.local_rank == nullptr ? "" : fmt::format(", {}={}", names.local_rank, found.local_rank);
    throw ConfigError(fmt::format("{}={}, {}={}{} do not fit together: expected {} < {}{}", names.rank, found.rank,
                                  names.world_size, found.world_size, local, names.rank, names.world_size,
                                  local.empty() ? "" : fmt::format(" and {} <= {}", names.local_rank, names.rank)));
  }
  return found;
}

// All three variables, or none of them.
std::optional<ExternalRank> read_names(const EnvironmentLookup& environment, const Names& names) {
  const auto rank = environment(names.rank);
  const auto local_rank = environment(names.local_rank);
  if (!rank && !local_rank) {
    return std::nullopt;  // a lone WORLD_SIZE or SLURM_NTASKS is what an allocation leaves, not a rank
  }
  for (const char* name : {names.rank, names.world_size, names.local_rank}) {
    if (!environment(name)) {
      throw ConfigError(
          fmt::format("some variables of {} are set but not {}: expected {}, {} and {} together. "
                      "Set all of them or none",
                      names.launcher, name, names.rank, names.world_size, names.local_rank));
    }
  }
  return read_values(environment, names);
}

// PMI_RANK and PMI_SIZE: each launcher that speaks PMI has its own names for what is on this machine.
std::optional<ExternalRank> read_pmi(const EnvironmentLookup& environment) {
  if (!environment("PMI_RANK")) {
    return std::nullopt;
  }
  if (!environment("PMI_SIZE")) {
    throw ConfigError("PMI_RANK is set but not PMI_SIZE: set both or none");
  }
  Names names = kMpich;
  for (const auto& [rank, size] :
       {std::pair("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), std::pair("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
        std::pair("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
        std::pair("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE")}) {
    if (environment(rank)) {
      names.local_rank = rank;
      names.local_size = size;
      break;
    }
  }
  return read_values(environment, names);
}

// One rank on each machine or in each pod, by the variables of torchrun without LOCAL_RANK.
std::optional<ExternalRank> read_pod(const EnvironmentLookup& environment) {
  const bool has_rank = environment("RANK").has_value(), indexed = environment("JOB_COMPLETION_INDEX").has_value();
  if (environment("LOCAL_RANK") || !(has_rank ? environment("MASTER_ADDR").has_value() : indexed)) {
    return std::nullopt;
  }
  const Names& names = has_rank ? kPyTorchJob : kIndexedJob;
  if (!environment("WORLD_SIZE") || !environment("MASTER_ADDR")) {
    throw ConfigError(fmt::format(
        "{} is set but not {}: it tells which rank this is, and not of how many, or where they meet. Set WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT for ranks of one run; for a run of its own in each pod unset {}",
        names.rank, environment("WORLD_SIZE") ? "MASTER_ADDR" : "WORLD_SIZE", names.rank));
  }
  if (has_rank && !environment("MASTER_PORT")) {
    throw ConfigError("RANK, WORLD_SIZE and MASTER_ADDR are set but not MASTER_PORT: set all of them or none");
  }
  if (const auto processes = environment("PET_NPROC_PER_NODE"); processes && *processes != "1") {
    throw ConfigError(fmt::format(
        "PET_NPROC_PER_NODE is '{}' and LOCAL_RANK is not set: this pod is for several ranks, which torchrun "
        "starts: torchrun --no-python ./launch CONFIG",
        *processes));
  }
  ExternalRank found = read_values(environment, names);
  found.local_size = 1;
  found.on_one_machine = found.world_size == 1;
  found.run_key = "pods." + joined(environment, {"MASTER_ADDR", "MASTER_PORT"});
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

[[noreturn]] void refuse(const ExternalRank& first, const ExternalRank& second) {
  const Names &a = names_of(first.launcher), &b = names_of(second.launcher);
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
  const Names& names = names_of(launcher);
  return fmt::format("rank {} of {}, started by {} ({}, {}{}{})", rank, world_size, launcher, names.rank,
                     names.world_size, names.local_rank == nullptr ? "" : ", ",
                     names.local_rank == nullptr ? "" : names.local_rank);
}

namespace {

// Of an MPI or a job manager that started this process, with what it says of the others.
struct Outer {
  std::optional<ExternalRank> openmpi, slurm, flux, jsrun, pmi;

  explicit Outer(const EnvironmentLookup& environment)
      : openmpi(read_names(environment, kOpenMpi)),
        flux(read_names(environment, kFlux)),
        jsrun(read_names(environment, kJsrun)),
        pmi(read_pmi(environment)) {
    if (!is_batch_script(environment)) {
      slurm = read_names(environment, kSlurm);
    }
  }
  // From the innermost: an mpirun that starts its daemons by srun, flux or jsrun leaves theirs, which count daemons.
  std::vector<const ExternalRank*> all() const {
    std::vector<const ExternalRank*> found;
    for (const auto* one : {&openmpi, &flux, &jsrun, &pmi, &slurm}) {
      if (*one) {
        found.push_back(&**one);
      }
    }
    return found;
  }
};

ExternalRank under_torchrun(const EnvironmentLookup& environment, ExternalRank torchrun, const Outer& outer) {
  if (!environment("MASTER_ADDR") || !environment("MASTER_PORT")) {
    throw ConfigError(
        "torchrun's RANK, WORLD_SIZE and LOCAL_RANK are set but not MASTER_ADDR and MASTER_PORT: "
        "set all five or none");
  }
  for (const ExternalRank* other : outer.all()) {
    if (!agree(torchrun, *other) && !starts_one_torchrun_per_node(environment, *other)) {
      refuse(torchrun, *other);
    }
    torchrun.known_to_mpi = torchrun.known_to_mpi || agree(torchrun, *other);
  }
  torchrun.run_key =
      "torchrun." + joined(environment, {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
  // Ranks that meet at an address of the machine itself are all on it.
  if (!environment("LOCAL_WORLD_SIZE") && is_loopback(*environment("MASTER_ADDR"))) {
    torchrun.local_size = torchrun.world_size;
  }
  torchrun.on_one_machine = torchrun.local_size == torchrun.world_size;
  return torchrun;
}

// The same in every rank of a start, and another in any other start.
std::string key_of(const EnvironmentLookup& environment, const std::string& launcher) {
  if (launcher == kOpenMpi.launcher) {
    return "openmpi." + joined(environment, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"});
  }
  if (launcher == kSlurm.launcher) {
    return "slurm." + joined(environment, {"SLURM_JOB_ID", "SLURM_STEP_ID"});
  }
  if (launcher == kFlux.launcher) {
    return "flux." + joined(environment, {"FLUX_JOB_ID"});
  }
  return launcher + "." +
         joined(environment, {"PMIX_NAMESPACE", "PMI_JOBID", "PALS_APID", "PBS_JOBID", "LSB_JOBID", "SLURM_JOB_ID"});
}

ExternalRank of_outer(const EnvironmentLookup& environment, const Outer& outer) {
  // srun --mpi=pmi2 and flux set PMI_RANK as well: they know more.
  const bool by_slurm = outer.slurm && outer.pmi && !outer.openmpi && !outer.flux && agree(*outer.slurm, *outer.pmi);
  ExternalRank found = by_slurm ? *outer.slurm : *outer.all().front();
  const auto counts_daemons = [&](const ExternalRank& other) {
    return other.launcher == kSlurm.launcher ? environment("SLURM_JOB_ID").has_value()
                                             : found.launcher == kOpenMpi.launcher && other.launcher != kMpich.launcher;
  };
  for (const ExternalRank* other : outer.all()) {
    if (!agree(found, *other) && !counts_daemons(*other)) {
      refuse(found, *other);
    }
  }
  const auto nodes = environment(found.launcher == kFlux.launcher      ? "FLUX_JOB_NNODES"
                                 : environment("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES"
                                                                       : "SLURM_NNODES");
  if (found.launcher == kSlurm.launcher || found.launcher == kFlux.launcher) {
    found.local_size = is(nodes, 1) ? found.world_size : 0;
  }
  found.on_one_machine = found.local_size == found.world_size;
  found.run_key = key_of(environment, found.launcher);
  found.known_to_mpi = true;
  return found;
}

// Processes that something starts on every machine of an allocation and tells no rank: each would be a job of its own.
void require_no_nameless_task(const EnvironmentLookup& environment) {
  if (const auto rank = environment("PMIX_RANK")) {
    throw ConfigError(
        fmt::format("PMIX_RANK={} says that a PMIx launcher has started this process, and no variable says how many "
                    "there are: start the ranks by mpirun or srun, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR "
                    "and MASTER_PORT. To start a run from here unset PMIX_RANK",
                    *rank));
  }
  const auto task = environment("PBS_TASKNUM");
  if (task && environment("PBS_NODEFILE") && size_in(environment, "PBS_TASKNUM") > 1) {
    throw ConfigError(
        fmt::format("PBS_TASKNUM={}: pbsdsh has started this process, which tells it no rank. Start the job once, in "
                    "the batch script: ./launch CONFIG --set run.communicator=mpi takes the hosts of PBS_NODEFILE",
                    *task));
  }
}

}  // namespace

std::optional<ExternalRank> find_external_rank(const EnvironmentLookup& environment) {
  const Outer outer(environment);
  const std::optional<ExternalRank> pod = read_pod(environment);
  if (pod && pod->launcher == kPyTorchJob.launcher) {
    if (environment("JOB_COMPLETION_INDEX")) {
      if (const ExternalRank index = read_values(environment, kIndexedJob); !agree(*pod, index)) {
        refuse(*pod, index);
      }
    }
    for (const ExternalRank* other : outer.all()) {
      if (!agree(*pod, *other)) {
        refuse(*pod, *other);
      }
    }
  }
  if (!pod || pod->launcher != kPyTorchJob.launcher) {
    if (const auto torchrun = read_names(environment, kTorchrun)) {
      return under_torchrun(environment, *torchrun, outer);
    }
  }
  if (!outer.all().empty()) {
    return of_outer(environment, outer);
  }
  if (!pod) {
    require_no_nameless_task(environment);
  }
  return pod;
}

}  // namespace orthant
