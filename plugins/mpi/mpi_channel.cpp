// How members agree on a call and wait for each other; what moves the data is mpi_collectives.cpp.
#include "mpi_channel.h"

#include <fmt/ranges.h>
#include <orthant/hash.h>
#include <orthant/wait_time.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "mpi_calls.h"

namespace orthant {
namespace {

// MPI has no way to sleep until something arrives, and moves data only inside its calls. So a waiter asks all the time
// at first, and then between naps that grow with its wait: long enough to leave the core to ranks that compute, short
// enough to keep data moving and to delay nobody by more than a hundredth.
constexpr std::chrono::milliseconds eager{1};
std::chrono::steady_clock::duration nap_after(std::chrono::steady_clock::duration waited) {
  using std::chrono::microseconds;
  return std::clamp<std::chrono::steady_clock::duration>(waited / 100, microseconds(100), microseconds(1000));
}

const char* kind_name(std::int64_t kind) {
  static constexpr const char* names[] = {"nothing",    "all_reduce", "all_gather", "reduce_scatter",
                                          "all_to_all", "broadcast",  "reduce",     "gather",
                                          "scatter",    "barrier",    "split"};
  return kind >= 0 && kind < static_cast<std::int64_t>(std::size(names)) ? names[kind] : "an unknown call";
}

}  // namespace

MpiChannel::MpiChannel(std::shared_ptr<MpiWorld> world, MPI_Comm comm, std::string name, std::vector<int> members,
                       double timeout_seconds)
    : world_(std::move(world)),
      comm_(comm),
      name_(std::move(name)),
      members_(std::move(members)),
      timeout_seconds_(timeout_seconds),
      sent_(members_.size()),
      received_(members_.size()) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
}

MpiChannel::~MpiChannel() {
  if (!world_->failed()) {
    MPI_Comm_free(&comm_);
  }
}

std::string MpiChannel::describe(const Call& call) const {
  if (call.kind == split_kind) {
    return fmt::format("split of group '{}'", splitting_);
  }
  return fmt::format("{} #{} ({} bytes) of group '{}'", call.name, call.sequence, call.bytes, name_);
}

void MpiChannel::fail_here(const std::string& why) {
  world_->set_failed();
  throw Error(why);
}

void MpiChannel::wait(const Call& call, std::vector<MPI_Request>& requests, const std::vector<int>& peers) {
  const auto start = std::chrono::steady_clock::now();
  WaitTime time;
  for (;;) {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
    if (done != 0) {
      return;
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited < eager) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(nap_after(waited));
      world_->hear();
    }
    const double seconds = time.look();
    if (seconds >= timeout_seconds_ / 4) {
      world_->say_waiting(timeout_seconds_ / 8);
    }
    if (seconds < timeout_seconds_ || somebody_is_busy()) {
      continue;
    }
    std::set<int> missing;  // world ranks
    for (std::size_t i = 0; i < requests.size(); ++i) {
      // MPI_Testall has told nothing of those that are done while one is not.
      check_mpi(MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0) {
        if (i < peers.size()) {
          missing.insert(members_[peers[i]]);
        }
        // Its buffer goes away with this call, and the group is not used again. Collectives cannot be cancelled.
        if (!peers.empty()) {
          MPI_Cancel(&requests[i]);
          MPI_Request_free(&requests[i]);
        }
      }
    }
    fail_here(
        missing.empty()
            ? fmt::format("{} did not complete within {:g} s after all members had arrived: a rank or the network "
                          "is stuck",
                          describe(call), timeout_seconds_)
            : blame(call, missing));
  }
}

bool MpiChannel::somebody_is_busy() const {
  const std::vector<MpiWorld::Signs> signs = world_->signs();
  return std::any_of(signs.begin(), signs.end(),
                     [this](const MpiWorld::Signs& rank) { return rank.since_busy < timeout_seconds_; });
}

// A missing rank that says that it waits is held up by another, as this one is.
std::string MpiChannel::blame(const Call& call, const std::set<int>& missing) const {
  const std::vector<MpiWorld::Signs> signs = world_->signs();
  const auto waits = [&](int rank) { return signs[rank].since_waiting < timeout_seconds_ / 2; };
  std::vector<int> suspects, others;
  for (int rank = 0; rank < world_->size(); ++rank) {
    if (rank != world_->rank() && !waits(rank)) {
      (missing.contains(rank) ? suspects : others).push_back(rank);
    }
  }
  const char* why = "it is stuck, stopped or busy elsewhere (a rank that died is for mpirun to report)";
  const auto late = [&](const auto& ranks) {
    return fmt::format("rank{} {} did not arrive at {} within {:g} s", ranks.size() > 1 ? "s" : "",
                       fmt::join(ranks, ", "), describe(call), timeout_seconds_);
  };
  if (suspects.empty() && !others.empty()) {
    return fmt::format("{}: held up by rank{} {}: {}", late(missing), others.size() > 1 ? "s" : "",
                       fmt::join(others, ", "), why);
  }
  return suspects.empty() ? fmt::format("{}: {}", late(missing), why) : fmt::format("{}: {}", late(suspects), why);
}

void MpiChannel::wait(const Call& call, MPI_Request request) {
  std::vector<MPI_Request> requests{request};
  wait(call, requests);
}

MpiChannel::Call MpiChannel::begin(const char* name, std::int64_t kind, std::int64_t bytes, DType dtype, ReduceOp op,
                                   int root) {
  const Call call{name, kind, ++sequence_, bytes, static_cast<std::int64_t>(dtype), static_cast<std::int64_t>(op),
                  root};
  compare(call);
  return call;
}

void MpiChannel::agree_on_split(const std::string& group) {
  const std::uint64_t hash = Hash64().add(group).value();
  splitting_ = group;
  begin("split", split_kind, static_cast<std::int64_t>(hash), DType::u8);
}

void MpiChannel::compare(const Call& call) {
  constexpr std::size_t words = 6;
  const std::int64_t own[words] = {call.kind, call.sequence, call.bytes, call.dtype, call.op, call.root};
  std::vector<std::int64_t> theirs(words * members_.size());
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  for (int r = 0; r < size(); ++r) {
    if (r != rank_) {
      check_mpi(MPI_Irecv(&theirs[words * static_cast<std::size_t>(r)], words, MPI_INT64_T, r, call_tag, comm_,
                          &requests.emplace_back()),
                "MPI_Irecv");
      peers.push_back(r);
    }
  }
  for (const int r : std::vector<int>(peers)) {
    check_mpi(MPI_Isend(own, words, MPI_INT64_T, r, call_tag, comm_, &requests.emplace_back()), "MPI_Isend");
    peers.push_back(r);
  }
  wait(call, requests, peers);
  for (int r = 0; r < size(); ++r) {
    const std::int64_t* other = &theirs[words * static_cast<std::size_t>(r)];
    for (std::size_t w = 0; w < words && r != rank_; ++w) {
      const bool may_differ = w == 2 && call.kind == all_to_all_kind && other[0] == all_to_all_kind;
      if (other[w] != own[w] && !may_differ && call.kind == split_kind && other[0] == split_kind) {
        fail_here(
            fmt::format("rank {} splits another group than rank {}, which splits '{}': split must be called in the "
                        "same order on every rank",
                        members_[r], members_[rank_], splitting_));
      }
      if (other[w] != own[w] && !may_differ) {
        const auto view = [&](int who, const std::int64_t* c) {
          return fmt::format("rank {} called {} #{} of {} bytes ({}, operator {}, root {})", members_[who],
                             kind_name(c[0]), c[1], c[2], name_of(static_cast<DType>(c[3])), c[4], c[5]);
        };
        fail_here(fmt::format("{} while {} in group '{}': every member must make the same calls in the same order",
                              view(r, other), view(rank_, own), name_));
      }
    }
  }
}

}  // namespace orthant
