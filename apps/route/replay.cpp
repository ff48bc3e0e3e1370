#include "apps/route/replay.h"

#include <orthant/device.h>

#include <algorithm>

#include "apps/route/gate_pass.h"

namespace orthant {
namespace {

class Replayer {
 public:
  Replayer(const RecordedStep& step, const Settings& settings)
      : device_(make_cpu_device(1)), stream_(device_->make_main_stream()), pass_(step, settings, *stream_) {}

  Decisions decide(const RecordedTokens& of, const RecordedLayer& layer) {
    pass_.load(of, layer);
    pass_.decide();
    Decisions made{.layer = layer.layer,
                   .top_k = pass_.config().top_k,
                   .expert = host(pass_.expert()),
                   .kept = {},
                   .load = {},
                   .computed = {}};
    for (const std::int32_t at : host(pass_.row())) {
      made.kept.push_back(at >= 0 ? 1 : 0);
    }
    count(made, host(pass_.kept()), host(pass_.dropped()), std::count(of.valid.begin(), of.valid.end(), 1));
    return made;
  }

 private:
  std::vector<std::int32_t> host(const Tensor& t) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(t.elements()));
    stream_->download(values.data(), t);
    return values;
  }

  void count(Decisions& made, const std::vector<std::int32_t>& kept, const std::vector<std::int32_t>& dropped,
             std::int64_t valid) const {
    made.computed.assign(kept.begin(), kept.end());
    std::int64_t all = 0;
    for (std::size_t e = 0; e < kept.size(); ++e) {
      made.load.push_back(std::int64_t{kept[e]} + dropped[e]);
      made.dropped_by_capacity += dropped[e];
      all += made.load[e];
    }
    made.choices = pass_.config().second_by_chance ? valid * made.top_k : all;
    made.dropped_by_chance = made.choices - all;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  GatePass pass_;
};

}  // namespace

std::vector<Decisions> replay(const RecordedStep& step, const Settings& settings) {
  Replayer replayer(step, settings);
  std::vector<Decisions> all;
  for (const RecordedTokens& stage : step.of_stages) {
    for (const RecordedLayer& layer : stage.layers) {
      all.push_back(replayer.decide(stage, layer));
    }
  }
  std::sort(all.begin(), all.end(), [](const Decisions& a, const Decisions& b) { return a.layer < b.layer; });
  return all;
}

}  // namespace orthant
