#include "bench/machine/own_layouts.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>

namespace orthant::machine {
namespace {

struct OwnSize {
  const char* name;
  int layers, hidden, ffn, vocabulary, positions, sequences;
  int experts = 0, top_k = 0, expert_ffn = 0;
};

constexpr int own_heads = 4;

constexpr OwnSize own_sizes[] = {{"A", 2, 64, 256, 256, 64, 16},
                                 {"A8", 2, 64, 256, 256, 64, 16, 8, 2, 64},
                                 {"B", 4, 128, 512, 512, 128, 16},
                                 {"B8", 4, 128, 512, 512, 128, 16, 8, 2, 128},
                                 {"B16", 4, 128, 512, 512, 128, 16, 16, 4, 64},
                                 {"C", 4, 256, 1024, 1024, 128, 8},
                                 {"C8", 4, 256, 1024, 1024, 128, 8, 8, 2, 256},
                                 {"D", 2, 128, 256, 512, 512, 8}};

const OwnSize& size_of(const OwnLayout& layout) {
  const auto* found = std::find_if(std::begin(own_sizes), std::end(own_sizes),
                                   [&](const OwnSize& one) { return layout.size == one.name; });
  require(found != std::end(own_sizes), "there is no model of the size '{}'", layout.size);
  return *found;
}

// What the fit sees: each term of the model in a few layouts.
std::vector<OwnLayout> seen_layouts() {
  return {{.size = "A"},
          {.size = "B"},
          {.size = "C"},
          {.size = "D"},
          {.size = "A8"},
          {.size = "B8"},
          {.size = "B16"},
          {.size = "C8"},
          {.size = "B", .micro_batch = 2},
          {.size = "B", .data = 2},
          {.size = "C", .data = 2, .zero = 1},
          {.size = "B8", .data = 2, .expert = 2},
          {.size = "C", .tensor = 2},
          {.size = "B", .pipeline = 2, .micro_batch = 4},
          {.size = "A", .data = 4},
          {.size = "B", .data = 4, .zero = 3},
          {.size = "C8", .data = 4, .expert = 4},
          {.size = "B", .tensor = 4},
          {.size = "A", .pipeline = 2, .micro_batch = 4},
          {.size = "D", .sequence = 2},
          {.size = "C", .data = 2, .tensor = 2},
          {.size = "B", .data = 8},
          {.size = "A", .pipeline = 2, .data = 2, .tensor = 2, .micro_batch = 2},
          {.size = "B", .communicator = "mpi", .data = 2},
          {.size = "C", .communicator = "mpi", .tensor = 2},
          {.size = "B8", .communicator = "mpi", .data = 4, .expert = 2},
          {.size = "A", .communicator = "mpi", .pipeline = 2, .micro_batch = 4},
          {.size = "B", .communicator = "mpi", .data = 2, .tensor = 2},
          {.size = "C", .communicator = "mpi", .data = 8},
          {.size = "C8", .data = 2, .expert = 2},
          {.size = "B8", .data = 8, .expert = 4},
          {.size = "D", .pipeline = 2, .micro_batch = 2},
          {.size = "B", .pipeline = 4, .micro_batch = 2},
          {.size = "C", .data = 8, .zero = 1},
          {.size = "C", .communicator = "mpi", .data = 4, .zero = 1},
          {.size = "A8", .micro_batch = 4},
          {.size = "B16", .micro_batch = 4},
          {.size = "C8", .pipeline = 2, .micro_batch = 2},
          {.size = "B", .sequence = 2},
          {.size = "D", .communicator = "mpi", .data = 2},
          {.size = "B", .communicator = "mpi", .tensor = 4},
          {.size = "C", .data = 8}};
}

std::vector<OwnLayout> held_out_layouts() {
  return {{.size = "A", .micro_batch = 2},
          {.size = "B", .micro_batch = 4},
          {.size = "C8", .micro_batch = 4},
          {.size = "D", .micro_batch = 4},
          {.size = "B8", .micro_batch = 2},
          {.size = "C", .data = 2},
          {.size = "A", .data = 2, .zero = 1},
          {.size = "B", .data = 2, .zero = 3},
          {.size = "B16", .data = 2},
          {.size = "C8", .data = 2},
          {.size = "A", .tensor = 2},
          {.size = "B", .tensor = 2, .sequence_parallel = true},
          {.size = "A", .sequence = 2},
          {.size = "B", .pipeline = 2, .micro_batch = 2},
          {.size = "B8", .pipeline = 2, .micro_batch = 4},
          {.size = "D", .data = 2, .zero = 3},
          {.size = "A", .data = 4, .zero = 1},
          {.size = "B", .data = 4, .zero = 2},
          {.size = "B16", .data = 4, .expert = 4},
          {.size = "D", .data = 4},
          {.size = "A", .data = 2, .tensor = 2},
          {.size = "B", .tensor = 4, .sequence_parallel = true},
          {.size = "B", .data = 2, .sequence = 2},
          {.size = "C", .pipeline = 2, .data = 2, .micro_batch = 2},
          {.size = "A", .data = 8},
          {.size = "D", .data = 8, .zero = 1},
          {.size = "C", .data = 2, .tensor = 4},
          {.size = "B16", .data = 8, .expert = 4},
          {.size = "C", .communicator = "mpi", .data = 2, .zero = 1},
          {.size = "D", .communicator = "mpi", .tensor = 2},
          {.size = "B8", .communicator = "mpi", .data = 2, .expert = 2},
          {.size = "B", .communicator = "mpi", .pipeline = 2, .micro_batch = 2},
          {.size = "B", .communicator = "mpi", .data = 4},
          {.size = "C", .communicator = "mpi", .tensor = 4}};
}

}  // namespace

std::vector<OwnLayout> own_layouts() {
  std::vector<OwnLayout> all = seen_layouts();
  for (OwnLayout& layout : all) {
    layout.seen = true;
  }
  const std::vector<OwnLayout> others = held_out_layouts();
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

std::vector<std::string> settings_of(const OwnLayout& layout) {
  const OwnSize& size = size_of(layout);
  std::vector<std::string> set = {fmt::format("model.layers={}", size.layers),
                                  fmt::format("model.d_model={}", size.hidden),
                                  fmt::format("model.d_ff={}", size.ffn),
                                  fmt::format("model.vocab_size={}", size.vocabulary),
                                  fmt::format("data.sequence_length={}", size.positions),
                                  fmt::format("batch.sequences={}", size.sequences)};
  const auto add = [&](bool wanted, const std::string& text) {
    if (wanted) {
      set.push_back(text);
    }
  };
  if (size.experts > 0) {
    set.insert(set.end(), {fmt::format("moe.experts={}", size.experts), fmt::format("moe.top_k={}", size.top_k),
                           fmt::format("moe.d_expert={}", size.expert_ffn), "moe.capacity_factor=0"});
  }
  // The order of the tables is that of the axes, and cost::Layout's.
  add(layout.pipeline > 1, fmt::format("plugins.pipeline.size={}", layout.pipeline));
  add(layout.pipeline > 1, fmt::format("plugins.pipeline.schedule=\"{}\"", layout.all_at_once  ? "gpipe"
                                                                           : layout.chunks > 1 ? "interleaved"
                                                                                               : "1f1b"));
  add(layout.chunks > 1, fmt::format("plugins.pipeline.chunks={}", layout.chunks));
  add(layout.data > 1, fmt::format("plugins.data.size={}", layout.data));
  add(layout.data > 1, fmt::format("plugins.data.zero={}", layout.zero));
  add(layout.sequence > 1, fmt::format("plugins.sequence.size={}", layout.sequence));
  add(layout.tensor > 1, fmt::format("plugins.tensor.size={}", layout.tensor));
  add(layout.sequence_parallel, "plugins.tensor.sequence_parallel=true");
  add(layout.expert > 1, fmt::format("plugins.expert.size={}", layout.expert));
  add(layout.micro_batch > 0, fmt::format("batch.micro_batch={}", layout.micro_batch));
  return set;
}

cost::ModelShape shape_of(const OwnLayout& layout) {
  const OwnSize& size = size_of(layout);
  cost::ModelShape shape;
  shape.layers = size.layers;
  shape.hidden = size.hidden;
  shape.ffn = size.experts > 0 ? 0 : size.ffn;
  shape.heads = shape.kv_heads = own_heads;
  shape.head_size = static_cast<double>(size.hidden) / own_heads;
  shape.sequence = size.positions;
  shape.vocabulary = size.vocabulary;
  shape.gated = true;
  shape.biases = shape.tied = false;
  shape.experts = size.experts;
  shape.top_k = size.top_k;
  shape.expert_ffn = size.expert_ffn;
  return shape;
}

cost::Layout layout_of(const OwnLayout& own) {
  const OwnSize& size = size_of(own);
  cost::Layout layout;
  layout.ranks = own.ranks();
  layout.tensor = own.tensor;
  layout.pipeline = own.pipeline;
  layout.chunks = own.chunks;
  layout.context = own.sequence;
  layout.expert = own.expert;
  layout.zero = own.zero;
  layout.global_batch = size.sequences;
  layout.micro_batch = own.micro_batch > 0 ? own.micro_batch : static_cast<double>(size.sequences) / own.data;
  layout.sequence_parallel = own.sequence_parallel;
  layout.all_at_once = own.all_at_once;
  layout.overlapped = false;
  layout.precision = cost::Precision::fp32;
  return layout;
}

std::string text_of(const OwnLayout& layout) {
  std::string text = layout.size;
  const auto add = [&](bool wanted, const std::string& more) { text += wanted ? " " + more : ""; };
  add(layout.pipeline > 1, fmt::format("pipeline {}{}", layout.pipeline, layout.all_at_once ? " gpipe" : ""));
  add(layout.chunks > 1, fmt::format("chunks {}", layout.chunks));
  add(layout.data > 1, fmt::format("data {}", layout.data));
  add(layout.zero > 0, fmt::format("zero {}", layout.zero));
  add(layout.sequence > 1, fmt::format("sequence {}", layout.sequence));
  add(layout.tensor > 1, fmt::format("tensor {}{}", layout.tensor, layout.sequence_parallel ? " sp" : ""));
  add(layout.expert > 1, fmt::format("expert {}", layout.expert));
  add(layout.micro_batch > 0, fmt::format("micro-batch {}", layout.micro_batch));
  return text;
}

}  // namespace orthant::machine
