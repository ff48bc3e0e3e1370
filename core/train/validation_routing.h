// ValidationRouting: what a validation tells of routing: the experts of the held-out tokens, beside those of the last
// validation.
//
// A token's set of experts is remembered as a hash of 32 bits, on the host of the rank that counts the token. Nothing
// is saved: a run that goes on has no last validation until its second one.
// Thread safety: one per rank; not shared.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "router/routing_tap.h"

namespace orthant {

// What a validation tells of a routed layer, over the held-out tokens.
struct ValidatedRouting {
  int block = 0;
  std::optional<double> churn;      // share of the tokens whose set of experts is not that of the last validation
  std::vector<std::int64_t> pairs;  // [E, E] tokens that chose both, 0 for an expert with itself; or none
};

class ValidationRouting final : public RoutingTap {
 public:
  // ranks: those that train one model.
  ValidationRouting(const Plan& plan, Group& ranks);

  void begin();
  // The batch of a pass is on the device; and all of the stage's layers have routed it: waits for the device.
  void loaded(int pass, const DeviceBatch& batch);
  void passed(int pass, Stream& s);
  void decided(const StepContext& ctx, int routed, const GateInput& from, const GateChoice& made) override;
  // Behind all passes. Collective over the ranks.
  std::vector<ValidatedRouting> finish(Stream& s);

 private:
  struct Pass {
    std::vector<Tensor> valid;     // of each token space u8 [T]
    std::map<int, Tensor> expert;  // by routed layer: i32 [T, K]
  };
  struct Layer {
    std::map<int, std::vector<std::uint32_t>> sets;  // by pass; 0: a token that is padding
    std::vector<std::int64_t> pairs;                 // [E, E], or none
    std::int64_t tokens = 0, changed = 0;
  };
  void add(Layer& to, int pass, const std::vector<std::int32_t>& expert, const std::vector<std::uint8_t>& valid);

  const Plan& plan_;
  Group& ranks_;
  std::vector<const Link*> links_;  // the routed ones
  std::vector<Layer> seen_;
  std::map<const void*, int> pass_of_;  // by the memory of its `valid`
  std::map<int, Pass> passes_;
  int validations_ = 0;
};

}  // namespace orthant
