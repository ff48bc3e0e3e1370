// Which rank this process already is, when torchrun, mpirun, srun or the like started it.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace orthant {

// Reads one environment variable; nullopt where it is unset or empty.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

EnvironmentLookup process_environment();

struct ExternalRank {
  std::string launcher;  // "torchrun", "Open MPI", "Slurm", ...: docs/guides/cluster.md has the table
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string run_key;          // the same in every rank of this start, another in any other start; may be empty
  int local_size = 0;           // ranks on this machine; 0: the launcher does not say
  bool on_one_machine = false;  // the launcher says that all ranks are
  bool known_to_mpi = false;    // MPI will find the same ranks

  std::string describe() const;  // one line: who won and by which variables
};

// torchrun's variables first, then those of MPI launchers and job managers, then those of pods; nullopt where there are
// none. One launcher may start another, one per node (srun or mpirun starting torchrun, mpirun starting its daemons by
// srun): the outer numbers then count nodes and are not compared. Any other disagreement is refused.
// Errors: ConfigError naming the variables that contradict each other, are incomplete or are not numbers, and those of
// a launcher that tells no rank (PMIX_RANK alone, pbsdsh).
std::optional<ExternalRank> find_external_rank(const EnvironmentLookup& environment);

}  // namespace orthant
