#include "core/run/rank.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/modules/module.h"
#include "parallel/local/local_communicator.h"
#include "parallel/local/segment.h"

namespace orthant {
namespace {

int number_of(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') {
    return otherwise;
  }
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < 0) {
    throw ConfigError(fmt::format("{}={}: expected a number; it is set by `orthant launch`", name, text));
  }
  return value;
}

void run_guarded(Communicator& communicator, const std::function<void(Communicator&)>& body) {
  try {
    body(communicator);
  } catch (const std::exception& failure) {
    communicator.abort(failure.what());
    throw;
  }
}

}  // namespace

std::optional<RankEnvironment> rank_environment() {
  if (std::getenv("ORTHANT_RANK") == nullptr) {
    return std::nullopt;
  }
  RankEnvironment rank;
  rank.rank = number_of("ORTHANT_RANK", 0);
  rank.world_size = number_of("ORTHANT_WORLD_SIZE", 1);
  rank.local_fd = number_of("ORTHANT_LOCAL_FD", -1);
  rank.columns = number_of("ORTHANT_TTY", 0);
  if (const char* directory = std::getenv("ORTHANT_RUN_DIR")) {
    rank.run_directory = directory;
  }
  if (const char* job = std::getenv("ORTHANT_JOB_ID")) {
    rank.job_id = job;
  }
  return rank;
}

std::string communicator_device(const std::string& name) {
  if (name == "local") {
    return "";
  }
  const char* device = find_module("communicator", name).entry->needs_device;
  return device == nullptr ? "" : device;
}

void with_communicator(const Config& config, const RankEnvironment& rank,
                       const std::function<void(Communicator&)>& body) {
  const RunSettings& run = config.settings.run;
  if (run.communicator != "local") {
    const CommunicatorConfig wanted{
        .rank = rank.rank, .world_size = rank.world_size, .timeout_seconds = run.timeout_seconds};
    const auto communicator = create<Communicator>(find_module("communicator", run.communicator), &wanted);
    run_guarded(*communicator, body);
    return;
  }
  require(rank.local_fd >= 0 || rank.world_size == 1,
          "rank {} of {} has no shared segment (ORTHANT_LOCAL_FD): start it with `orthant launch`", rank.rank,
          rank.world_size);
  const std::shared_ptr<LocalSegment> segment =
      rank.local_fd >= 0 ? LocalSegment::attach(rank.local_fd) : LocalSegment::create(1);
  const std::unique_ptr<Communicator> communicator = make_local_communicator(segment, rank.rank, run.timeout_seconds);
  run_guarded(*communicator, body);
  segment->set_state(rank.rank, RankState::finished);
}

}  // namespace orthant
