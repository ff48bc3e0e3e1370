// The batches of a step that is planned.
#pragma once

#include <orthant/settings.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/arch/links.h"
#include "core/data/source.h"

namespace orthant {

// Sequences without padding whose tokens all count; their ids and values mean nothing.
class PlanningSource final : public BatchSource {
 public:
  // of_a_pass: sequences that all ranks together put through the model at once.
  PlanningSource(const Settings& settings, std::int64_t of_a_pass)
      : settings_(settings), spaces_(spaces_of(settings)), of_a_pass_(of_a_pass) {}

  HostBatch train(std::int64_t, std::int64_t first, std::int64_t count) const override {
    HostBatch batch = of_space(spaces_.front(), first, count);
    for (std::size_t i = 1; i < spaces_.size(); ++i) {
      batch.spaces.push_back(of_space(spaces_[i], first, count));
    }
    return batch;
  }
  HostBatch validation(std::int64_t first, std::int64_t count) const override { return train(0, first, count); }
  // As many passes as there are, full ones: every rank has sequences in each, and so counts tokens.
  std::int64_t validation_sequences() const override {
    return (settings_.data.validation_sequences + of_a_pass_ - 1) / of_a_pass_ * of_a_pass_;
  }
  std::int64_t vocabulary() const override { return settings_.model.vocab_size; }

 private:
  HostBatch of_space(const Space& space, std::int64_t first, std::int64_t count) const {
    const std::int64_t length = space.positions;
    const std::size_t tokens = static_cast<std::size_t>(count * length);
    HostBatch batch;
    batch.sequences = count;
    batch.positions = length;
    batch.token.resize(tokens);
    batch.label.resize(tokens);
    batch.position.resize(tokens);
    // Sequences of several documents carry their beginnings to the device, others do not.
    batch.first.resize(tokens, settings_.data.documents == Documents::packed ? 1 : 0);
    batch.valid.resize(tokens, 1);
    batch.index.resize(tokens);
    std::iota(batch.index.begin(), batch.index.end(), first * length);
    for (std::size_t t = 0; t < tokens; ++t) {
      batch.position[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % length);
    }
    batch.columns = space.columns;
    batch.value.resize(tokens * static_cast<std::size_t>(space.columns), 0);
    return batch;
  }

  const Settings& settings_;
  const std::vector<Space> spaces_;
  const std::int64_t of_a_pass_;
};

}  // namespace orthant
