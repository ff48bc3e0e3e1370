#include "start.h"

#include <orthant/error.h>

namespace orthant::nccl {

RendezvousConfig rendezvous_config(const CommunicatorConfig& config, const EnvironmentLookup& environment) {
  require(
      config.rank >= 0 && config.world_size > config.rank,
      "which rank this is, is not known (rank {} of {}): start the ranks with `orthant launch`, under torchrun, mpirun "
      "or srun where they start them",
      config.rank, config.world_size);
  RendezvousConfig found;
  found.rank = config.rank;
  found.world_size = config.world_size;
  found.timeout_seconds = config.timeout_seconds;
  found.address = environment("ORTHANT_RENDEZVOUS").value_or("");
  require(
      !found.address.empty() || config.world_size == 1,
      "where the ranks meet is not known: set ORTHANT_RENDEZVOUS=host:port for every rank, with the host of rank 0 as "
      "the others reach it, and a port that is free there");
  found.secret = {environment("ORTHANT_SECRET").value_or(""), environment("ORTHANT_SECRET_FILE").value_or("")};
  require(!found.secret.value.empty() || !found.secret.file.empty() || config.world_size == 1,
          "the ranks have no secret to know each other by: start them with `orthant launch`, or set ORTHANT_SECRET to "
          "the same 32 or more random characters for every rank");
  // Any two runs that could meet at one address differ in one of these; the ranks of one run in none.
  for (const char* name :
       {"ORTHANT_RUN_DIR", "SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"}) {
    found.job += (found.job.empty() ? "" : " ") + environment(name).value_or("-");
  }
  return found;
}

}  // namespace orthant::nccl
