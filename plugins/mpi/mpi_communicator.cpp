// The `mpi` communicator: ranks started by mpirun or srun, on one or several machines.
#include <orthant/host_channel.h>
#include <orthant/module.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "mpi_channel.h"
#include "mpi_world.h"

namespace orthant {
namespace {

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(const CommunicatorConfig& config)
      : world_(std::make_shared<MpiWorld>()), timeout_seconds_(config.timeout_seconds) {
    require(
        (config.rank < 0 || config.rank == world_->rank()) &&
            (config.world_size < 0 || config.world_size == world_->size()),
        "MPI says rank {} of {}, but rank {} of {} was asked for: start the ranks with mpirun or srun, with as many "
        "processes as the layout has ranks",
        world_->rank(), world_->size(), config.rank, config.world_size);
    std::vector<int> everyone(world_->size());
    std::iota(everyone.begin(), everyone.end(), 0);
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    splits_ = std::make_unique<MpiChannel>(world_, comm, "splits", everyone, timeout_seconds_);
  }

  std::string name() const override { return "mpi"; }
  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }

  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override {
    const auto own = std::find(members.begin(), members.end(), rank());
    require(own != members.end(), "split of group '{}': rank {} must pass the list that it belongs to", name, rank());
    const int group_rank = static_cast<int>(own - members.begin());
    splits_->agree_on_split(name);
    // The lists partition the world, so a list's first rank names it.
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(MPI_COMM_WORLD, members[0], group_rank, &comm), "MPI_Comm_split");
    auto channel = std::make_shared<MpiChannel>(world_, comm, name, members, timeout_seconds_);
    int size_found = 0;
    check_mpi(MPI_Comm_size(comm, &size_found), "MPI_Comm_size");
    require(size_found == static_cast<int>(members.size()) && channel->rank() == group_rank,
            "split of group '{}': the ranks' lists of members do not partition the world of {}", name, size());
    return make_host_group(name, group_rank, members, std::move(channel));
  }

  void beat() noexcept override { world_->say_busy(timeout_seconds_ / 4); }

  // Ends the whole job, this process included: MPI has no way to only tell the others.
  void abort(const std::string& why) noexcept override {
    world_->set_failed();
    std::fprintf(stderr, "rank %d: %s\n", rank(), why.c_str());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

 private:
  std::shared_ptr<MpiWorld> world_;
  double timeout_seconds_;
  std::unique_ptr<MpiChannel> splits_;  // of all ranks, to meet before a split
};

std::unique_ptr<Communicator> make(const CommunicatorConfig& config) {
  return std::make_unique<MpiCommunicator>(config);
}

}  // namespace
}  // namespace orthant

ORTHANT_COMMUNICATOR("mpi", orthant::make)
