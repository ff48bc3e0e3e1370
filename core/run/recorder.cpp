#include "core/run/recorder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/arch/decoder.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

template <class T>
std::vector<T> host(const Tensor& t, Stream& s) {
  std::vector<T> values(static_cast<std::size_t>(t.elements()));
  s.download(values.data(), t);
  return values;
}

}  // namespace

RoutingRecorder::RoutingRecorder(const Plan& plan)
    : plan_(plan), experts_(plan.settings().moe.experts), kept_(recorded_logits(plan.settings())) {
  for (const Link* link : routed_links(plan.links())) {
    layers_.push_back(link->block + 1);
  }
}

RecordedLayer& RoutingRecorder::layer_of(int routed) {
  const int layer = layers_.at(static_cast<std::size_t>(routed));
  const auto found = std::find_if(tokens_.layers.begin(), tokens_.layers.end(),
                                  [&](const RecordedLayer& known) { return known.layer == layer; });
  if (found != tokens_.layers.end()) {
    return *found;
  }
  tokens_.layers.push_back({.layer = layer, .logits = {}, .expert = {}, .lse = {}, .state = {}});
  return tokens_.layers.back();
}

// Layers of a stage meet the micro-batches in one order, but not one after another: the first layer's list of tokens
// stands for all.
void RoutingRecorder::decided(const StepContext& ctx, int routed, const GateInput& from, const GateChoice& made) {
  if (!ctx.training || plan_.mesh().worker() != 0 || !plan_.counts_tokens(Region::router, true)) {
    return;
  }
  Stream& s = ctx.stream;
  RecordedLayer& to = layer_of(routed);
  if (to.layer == tokens_.layers.front().layer) {
    for (const std::int64_t index : host<std::int64_t>(from.index, s)) {
      tokens_.index.push_back(index);
    }
    for (const std::uint8_t valid : host<std::uint8_t>(from.valid, s)) {
      tokens_.valid.push_back(valid);
    }
    if (from.token.defined()) {
      for (const std::int32_t token : host<std::int32_t>(from.token, s)) {
        tokens_.token.push_back(token);
      }
    }
  }
  if (from.state.defined()) {
    to.state = host<float>(from.state, s);
  }
  const std::vector<float> lse = host<float>(made.lse, s), logits = host<float>(from.logits, s);
  to.lse.insert(to.lse.end(), lse.begin(), lse.end());
  if (kept_ == experts_) {
    to.logits.insert(to.logits.end(), logits.begin(), logits.end());
    return;
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts_));
  for (std::size_t t = 0; t < lse.size(); ++t) {
    const float* const row = logits.data() + t * order.size();
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + kept_, order.end(),
                      [&](std::int32_t a, std::int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
    for (std::int64_t m = 0; m < kept_; ++m) {
      to.expert.push_back(order[static_cast<std::size_t>(m)]);
      to.logits.push_back(row[order[static_cast<std::size_t>(m)]]);
    }
  }
}

void RoutingRecorder::write(const std::filesystem::path& run, std::int64_t step, Group& world, Stream& s) {
  const std::filesystem::path folder = recording_folder(run, step);
  std::string written;  // "NAME CHECKSUM"
  if (!tokens_.layers.empty()) {
    std::sort(tokens_.layers.begin(), tokens_.layers.end(),
              [](const RecordedLayer& a, const RecordedLayer& b) { return a.layer < b.layer; });
    const RecordedPart part = write_part(folder, plan_.mesh().rank(), std::exchange(tokens_, {}), experts_, kept_);
    written = part.name + " " + part.checksum;
  }
  std::vector<RecordedPart> parts;
  for (const std::string& text : gather_texts(written, world, s)) {
    const std::size_t end = text.find(' ');
    if (end != std::string::npos) {
      parts.push_back({text.substr(0, end), text.substr(end + 1)});
    }
  }
  if (world.rank() == 0) {
    const Settings& settings = plan_.settings();
    const std::int64_t all = sequences_of_step(settings.batch, step - 1) * settings.data.sequence_length;
    finish_recording(folder, step, parts, all, kept_);
  }
}

}  // namespace orthant
