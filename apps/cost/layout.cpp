#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <orthant/error.h>

#include "apps/cost/step_time.h"

namespace orthant::cost {

double imbalance(const Routing& routing, int experts, int expert, int micro_batch) {
  if (!routing.busiest.empty()) {
    const std::vector<double>& layers = routing.busiest[static_cast<std::size_t>(micro_batch) % routing.busiest.size()];
    return std::accumulate(layers.begin(), layers.end(), 0.0) / static_cast<double>(layers.size());
  }
  if (routing.load.empty() || experts == 0) {
    return routing.skew;
  }
  const std::vector<double>& load = routing.load[static_cast<std::size_t>(micro_batch) % routing.load.size()];
  require(load.size() == static_cast<std::size_t>(experts), "a recorded load has {} experts, the model {}", load.size(),
          experts);
  const std::size_t local = load.size() / static_cast<std::size_t>(expert);
  double all = 0, most = 0;
  for (std::size_t first = 0; first + local <= load.size(); first += local) {
    double own = 0;
    for (std::size_t i = first; i < first + local; ++i) {
      own += load[i];
    }
    all += own;
    most = std::max(most, own);
  }
  return all > 0 ? most * expert / all : 1;
}

int Layout::size_of(Axis axis) const {
  switch (axis) {
    case Axis::tensor: return tensor;
    case Axis::context: return context;
    case Axis::data: return std::max(1, static_cast<int>(data()));
    case Axis::pipeline: return pipeline;
  }
  return 1;
}

int Layout::stride_of(Axis axis) const {
  int stride = 1;
  for (const Axis inner : order) {
    if (inner == axis) {
      break;
    }
    stride *= size_of(inner);
  }
  return stride;
}

Spans Layout::gradient_spans() const {
  Spans spans;
  for (const Axis axis : order) {
    if (axis == Axis::context || axis == Axis::data) {
      spans.add(size_of(axis), stride_of(axis));
    }
  }
  return spans;
}

namespace {

// The ranks that tokens of experts are divided among, from the innermost on: the first `expert` of them share the
// experts out, and the rest hold the same ones.
std::pair<Spans, Spans> carved(const Layout& layout) {
  std::pair<Spans, Spans> spans;
  int left = layout.expert;
  for (const Axis axis : layout.order) {
    const bool taken = axis == Axis::context || axis == Axis::data ||
                       (axis == Axis::tensor && layout.tensor_experts == TensorExperts::folded);
    if (taken) {
      const int size = layout.size_of(axis), stride = layout.stride_of(axis), own = std::gcd(left, size);
      spans.first.add(own, stride);
      spans.second.add(size / own, stride * own);
      left /= own;
    }
  }
  return spans;
}

Spans one_span(int size, int stride) {
  Spans spans;
  spans.add(size, stride);
  return spans;
}

}  // namespace

Spans Layout::expert_spans() const {
  return tensor_experts == TensorExperts::parts ? one_span(expert, expert_tensor) : carved(*this).first;
}

Spans Layout::expert_data_spans() const {
  return tensor_experts == TensorExperts::parts
             ? one_span(std::max(1, static_cast<int>(expert_data())), expert * expert_tensor)
             : carved(*this).second;
}

// Pieces in the middle get one more, because the embedding and the head are work too.
std::vector<int> Layout::blocks_of_pieces(int layers) const {
  if (!blocks.empty()) {
    return blocks;
  }
  const int pieces = pipeline * chunks, rest = layers % pieces, first = (pieces - rest) / 2;
  std::vector<int> counts(static_cast<std::size_t>(pieces), layers / pieces);
  for (int i = first; i < first + rest; ++i) {
    ++counts[static_cast<std::size_t>(i)];
  }
  return counts;
}

void check_layout(const ModelShape& model, const Layout& layout) {
  for (const auto& [name, size] : {std::pair("tensor ranks", layout.tensor),
                                   {"pipeline stages", layout.pipeline},
                                   {"chunks", layout.chunks},
                                   {"context ranks", layout.context},
                                   {"expert ranks", layout.expert},
                                   {"ranks of one expert", layout.expert_tensor},
                                   {"ranks", layout.ranks},
                                   {"layers", model.layers}}) {
    require(size > 0, "{}: {}, and must be above 0", name, size);
  }
  require(layout.micro_batch > 0 && layout.global_batch > 0,
          "a batch of {:g} in micro-batches of {:g}: both must be above 0", layout.global_batch, layout.micro_batch);
  const int axes = layout.tensor * layout.pipeline * layout.context;
  require(layout.ranks % axes == 0, "{} ranks are no multiple of tensor {} * pipeline {} * context {}", layout.ranks,
          layout.tensor, layout.pipeline, layout.context);
  const int stage = layout.ranks / layout.pipeline, experts = layout.expert * layout.expert_tensor;
  require(stage % experts == 0, "{} ranks of a stage are no multiple of expert {} * expert_tensor {}", stage,
          layout.expert, layout.expert_tensor);
  require(model.experts == 0 || model.experts % layout.expert == 0, "{} experts do not divide among {} ranks",
          model.experts, layout.expert);
  const int pieces = layout.pipeline * layout.chunks;
  require(layout.blocks.empty() ? model.layers >= pieces || pieces == 1
                                : std::cmp_equal(layout.blocks.size(), pieces) &&
                                      std::accumulate(layout.blocks.begin(), layout.blocks.end(), 0) == model.layers,
          "{} blocks do not fill {} pieces (pipeline {} * chunks {})", model.layers, pieces, layout.pipeline,
          layout.chunks);
}

std::vector<int> balanced_blocks(const ModelShape& model, const Layout& layout, const Machine& machine,
                                 const Practice& practice) {
  const auto both = [](const BlockSeconds& seconds) { return seconds.forward.total() + seconds.backward.total(); };
  const double block = both(block_seconds(model, layout, machine, practice, model.experts > 0));
  const double head = both(head_seconds(model, layout, machine)) / block;
  const double behind = head * (1 + model.extra_layers) + model.extra_layers;  // in blocks
  const int pieces = layout.pipeline * layout.chunks;
  if (pieces == 1) {
    return {model.layers};
  }
  const double share = (model.layers + behind) / pieces;
  const int last = std::clamp(static_cast<int>(std::lround(share - behind)), 0, model.layers);
  Layout others = layout;
  others.pipeline = pieces - 1;
  others.chunks = 1;
  others.blocks.clear();
  std::vector<int> blocks = others.blocks_of_pieces(model.layers - last);
  blocks.push_back(last);
  return blocks;
}

double model_flops(const ModelShape& model, double sequences, bool causal) {
  ModelShape whole = model;
  whole.biases = false;
  const Layout one;
  double products = model.vocabulary * model.hidden, scores = 0;
  for (int block = 0; block < model.layers + model.extra_layers; ++block) {
    const bool routed = routed_block(model, block);
    BlockParameters count = block_parameters(whole, one, routed);
    products += count.dense - 2 * model.hidden + (routed ? count.routed * model.top_k / model.experts : 0);
    scores += 2 * model.sequence *
              (model.heads * (model.head_size + (model.value_size > 0 ? model.value_size : model.head_size))) *
              (causal ? 0.5 : 1);
  }
  products += model.extra_layers * model.vocabulary * model.hidden;
  return 3 * sequences * model.sequence * (2 * products + scores);
}

}  // namespace orthant::cost
