#include "core/command/rank_start.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "parallel/launch/meeting_point.h"
#include "parallel/local/segment.h"

namespace orthant {
namespace {

class LocalRankSegment : public RankSegment {
 public:
  explicit LocalRankSegment(std::shared_ptr<LocalSegment> segment) : segment_(std::move(segment)) {}
  int descriptor() const override { return segment_->fd(); }
  void mark_failed(int rank, const std::string& why) noexcept override { segment_->mark_failed(rank, why); }
  std::optional<RankFailure> failure() const override {
    const auto failure = segment_->failure();
    return failure ? std::optional(RankFailure{failure->rank, failure->why}) : std::nullopt;
  }
  std::int64_t step(int rank) const override { return segment_->step(rank); }
  void excuse_silence() noexcept override {
    for (int rank = 0; rank < segment_->world_size(); ++rank) {
      segment_->say_busy(rank);
    }
  }

 private:
  std::shared_ptr<LocalSegment> segment_;
};

}  // namespace

void check_communicator(const Config& config, const std::optional<ExternalRank>& external, int world_size,
                        bool by_hostfile) {
  const std::string& name = config.settings.run.communicator;
  const std::string found = fmt::format("run.communicator is '{}' (from {})", name, config.origin("run.communicator"));
  if (name == "local" && by_hostfile) {
    throw ConfigError(
        fmt::format("{}: it serves the ranks of one machine, but --hostfile was given. Use "
                    "communicator = \"mpi\" (--set run.communicator=mpi), or leave that out",
                    found));
  }
  if (!external || world_size == 1) {
    return;
  }
  if (name == "local" && !external->on_one_machine) {
    throw ConfigError(fmt::format(
        "{}: it serves the ranks of one machine, and {} does not say that these are on one (this is {}). For several "
        "machines start them by mpirun, srun or `./launch --hostfile`, with communicator = \"mpi\" "
        "(--set run.communicator=mpi)",
        found, external->launcher, external->describe()));
  }
  if (name == "mpi" && !external->known_to_mpi) {
    throw ConfigError(fmt::format(
        "{}, and {} started these ranks, of which MPI knows nothing. {}", found, external->launcher,
        external->on_one_machine
            ? "These are on one machine: use communicator = \"local\" (--set run.communicator=local)"
            : "Start them by mpirun, srun or `./launch --hostfile` instead; on one machine, communicator = \"local\" "
              "works under torchrun too"));
  }
}

RankStart::RankStart(LaunchPlan& plan, const RunSettings& run, std::optional<ExternalRank> external, int world_size,
                     std::filesystem::path secret_beside, bool dry)
    : plan_(plan), run_(run), external_(std::move(external)), secret_beside_(std::move(secret_beside)) {
  const bool local = run_.communicator == "local";
  plan_.world_size = world_size;
  plan_.local_ranks = world_size;
  if (external_) {
    plan_.first_rank = external_->rank;
    plan_.first_local_rank = external_->local_rank;
    plan_.local_ranks = 1;
    plan_.plain_output = true;  // other ranks' lines come in between, and the terminal may be the launcher's invention
  }
  // More threads than processors: OpenMP's waiting threads must sleep, or they take the time of those that work.
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  if (static_cast<std::uint64_t>(plan_.local_ranks) * static_cast<std::uint64_t>(run_.threads) > processors &&
      std::getenv("OMP_WAIT_POLICY") == nullptr) {
    plan_.environment.emplace_back("OMP_WAIT_POLICY", "passive");
  }
  if (const auto where = meeting_point(process_environment(), external_); where && !local && world_size > 1) {
    plan_.environment.emplace_back("ORTHANT_RENDEZVOUS", *where);
  }
  if (world_size > 1 && run_.communicator != "mpi" && (external_ || !local)) {
    external_ ? secret_.emplace(process_environment(), *external_, secret_beside_, dry)
              : secret_.emplace(process_environment());
  }
  if (secret_ && !local) {
    const auto variables = secret_->variables();
    plan_.environment.insert(plan_.environment.end(), variables.begin(), variables.end());
  }
  if (local) {
    plan_.make_segment = [](int size) { return std::make_unique<LocalRankSegment>(LocalSegment::create(size)); };
  }
}

void RankStart::meet() {
  if (run_.communicator != "local" || !secret_) {
    return;
  }
  meeting_ =
      std::make_unique<LocalMeeting>(LocalMeetingOptions{secret_->place(), external_->run_key + secret_beside_.string(),
                                                         external_->rank, plan_.world_size, run_.timeout_seconds});
  plan_.make_segment = [segment = meeting_->segment()](int) { return std::make_unique<LocalRankSegment>(segment); };
}

std::string RankStart::describe() const {
  return external_ ? external_->describe()
                   : fmt::format("{} local rank{}", plan_.world_size, plan_.world_size == 1 ? "" : "s");
}

}  // namespace orthant
