#include "parallel/local/thread_world.h"

#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "parallel/local/channel.h"
#include "parallel/local/local_communicator.h"

namespace orthant {
namespace {

struct Failure {
  int rank;
  std::string what;
  ExitCode code;
  bool secondary;  // stopped because another rank had failed
};

}  // namespace

void run_threads(int world, const std::function<void(Communicator&)>& body, const ThreadWorldOptions& options) {
  const std::shared_ptr<LocalSegment> segment = LocalSegment::create(world, options.segment);
  std::mutex mutex;
  std::vector<Failure> failures;  // in the order in which they happened

  const auto rank_main = [&](int rank) {
    const auto record = [&](const std::string& what, ExitCode code, bool secondary) {
      {
        const std::lock_guard lock(mutex);
        failures.push_back({rank, what, code, secondary});
      }
      segment->mark_failed(rank, fmt::format("rank {} failed: {}", rank, what));
    };
    try {
      const std::unique_ptr<Communicator> communicator =
          make_local_communicator(segment, rank, options.timeout_seconds);
      body(*communicator);
      segment->set_state(rank, RankState::finished);
    } catch (const PeerError& error) {
      record(error.what(), error.code(), true);
    } catch (const Error& error) {
      record(error.what(), error.code(), false);
    } catch (const std::exception& error) {
      record(error.what(), ExitCode::failure, false);
    } catch (...) {
      record("threw something that is not a std::exception", ExitCode::failure, false);
    }
  };

  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back(rank_main, rank);
  }
  threads.clear();  // joins

  const Failure* first = nullptr;
  for (const Failure& failure : failures) {
    if (first == nullptr || (first->secondary && !failure.secondary)) {
      first = &failure;
    }
  }
  if (first != nullptr) {
    throw Error(world == 1 ? first->what : fmt::format("rank {}: {}", first->rank, first->what), first->code);
  }
}

}  // namespace orthant
