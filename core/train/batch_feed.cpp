#include "core/train/batch_feed.h"

#include <algorithm>
#include <utility>

#include "core/base/output.h"
#include "core/trace/tracing_stream.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

// The ranks whose tokens are different parts of one global batch.
std::vector<int> token_ranks(const Plan& plan) {
  return plan.sum_members(ParamSpec{.name = "tokens", .global = {1}, .region = Region::embedding});
}

}  // namespace

BatchFeed::BatchFeed(Plan& plan, const BatchSource& source, const Objectives& objectives, Stream& stream)
    : plan_(plan),
      source_(source),
      objectives_(objectives),
      stream_(stream),
      shares_(batch_shares(plan)),
      tokens_(plan.mesh().group_of("tokens", token_ranks(plan))) {}

const BatchShare& BatchFeed::share_of(std::int64_t step) const {
  return shares_.at(times_grown(plan_.settings().batch, step));
}

StepLoad BatchFeed::read(std::int64_t step) const {
  const Phase phase(stream_, "batch");
  StepLoad load{.step = step,
                .micro_batches = {},
                .valid = std::vector<std::int64_t>(plan_.spaces().size(), 0),
                .counts = std::vector<std::int64_t>(objectives_.counts(), 0)};
  const BatchShare& share = share_of(step);
  for (int m = 0; m < share.micro_batches; ++m) {
    load.micro_batches.push_back(source_.train(step, share.first + m * share.micro_batch, share.micro_batch));
    objectives_.count(load.micro_batches.back(), plan_, load.valid, load.counts);
  }
  return load;
}

void BatchFeed::read_ahead(std::int64_t step) {
  ahead_.emplace().load.step = step;
  try {
    ahead_->load = read(step);
  } catch (...) {
    ahead_->failure = std::current_exception();
  }
}

StepLoad BatchFeed::load(std::int64_t step) {
  std::optional<ReadAhead> ahead = std::exchange(ahead_, std::nullopt);
  const bool known = ahead.has_value() && ahead->load.step == step;
  if (known && ahead->failure != nullptr) {
    std::rethrow_exception(ahead->failure);
  }
  StepLoad load = known ? std::move(ahead->load) : read(step);
  const Phase phase(stream_, "batch");
  sum_counts(load.valid, load.counts);
  if (load.valid.front() <= 0) {
    require_all_alive(tokens_, stream_);
    fail("step {} has no token", step);
  }
  if (load.counts.front() <= 0) {  // conversations without an answer
    load.counts.front() = 1;       // the loss is 0, and nothing is divided by 0
    if (plan_.mesh().rank() == 0) {
      say("orthant: note: step {} has no token that counts in the loss, which is 0", step + 1);
    }
  }
  return load;
}

void BatchFeed::sum_counts(std::vector<std::int64_t>& valid, std::vector<std::int64_t>& counts) {
  const std::size_t of_objectives = counts.size();
  counts.insert(counts.end(), valid.begin(), valid.end());
  all_reduce_values(counts, ReduceOp::sum, tokens_, stream_);
  std::copy(counts.begin() + static_cast<std::ptrdiff_t>(of_objectives), counts.end(), valid.begin());
  counts.resize(of_objectives);
}

}  // namespace orthant
