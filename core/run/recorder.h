// RoutingRecorder: keeps what this rank's routers decide from on a step, and writes it (recording.h).
//
// It waits for the device after each layer: a step that is recorded is a slow one.
#pragma once

#include <filesystem>

#include "core/run/recording.h"
#include "router/routing_tap.h"

namespace orthant {

// Thread safety: one per rank; not shared.
class RoutingRecorder final : public RoutingTap {
 public:
  explicit RoutingRecorder(const Plan& plan);

  void decided(const StepContext& ctx, int routed, const GateInput& from, const GateChoice& made) override;
  // What was kept since the last call becomes a recording, where every rank calls; collective over `world`.
  void write(const std::filesystem::path& run, std::int64_t step, Group& world, Stream& s);

 private:
  RecordedLayer& layer_of(int routed);

  const Plan& plan_;
  const std::int64_t experts_, kept_;
  std::vector<int> layers_;  // of the routed ones
  RecordedTokens tokens_;
};

}  // namespace orthant
