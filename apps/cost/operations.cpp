#include "apps/cost/operations.h"

#include <algorithm>
#include <cmath>

namespace orthant::cost {
namespace {

// What a host does for a forward pass, counted in launches, with its bookkeeping; for a backward pass twice as much.
constexpr double dense_launches = 120, routed_launches = 160, expert_launches = 10, narrow_expert_launches = 30,
                 head_launches = 60;
// On cores nothing is launched, but a product has a price beside its work. Those of a pass; all experts of a rank are
// one product, in which each has a price too.
constexpr double core_dense_products = 4, core_routed_products = 5, core_expert_products = 2, core_head_products = 1;

// Of products that are never narrower than halves.
Precision wide(const Layout& layout, const Machine& machine) {
  return machine.element_bytes(layout.precision) > half_bytes ? Precision::fp32 : Precision::half;
}

// Of `operations` that read and write `bytes` together. What one of them touches is in a core's cache, as far as it
// fits.
double memory_seconds(const Machine& machine, double bytes, double operations = 1) {
  const double seconds = bytes / (machine.memory_bandwidth * machine.factors.memory);
  const Cores& cores = machine.cores;
  if (cores.cache <= 0 || bytes <= 0) {
    return seconds;
  }
  const double inside = std::min(1.0, cores.cache * operations / bytes);
  return seconds * (inside / cores.cached + 1 - inside);
}

// Of one rank's micro-batch.
double tokens_of(const ModelShape& model, const Layout& layout) {
  return layout.micro_batch * model.sequence / layout.context;
}

double query_size(const ModelShape& model) {
  return model.heads * model.head_size;
}
double value_size(const ModelShape& model) {
  return model.heads * (model.value_size > 0 ? model.value_size : model.head_size);
}

// The projections of attention, forward.
double projections(const ModelShape& model, const Layout& layout, const Machine& machine, double tokens) {
  const auto product = [&](double n, double k) { return product_seconds(machine, layout.precision, tokens, n, k); };
  const double tensor = layout.tensor, out = product(model.hidden, value_size(model) / tensor);
  if (model.kv_rank > 0) {
    const double keys = model.heads * (model.head_size - model.rotary_size) + value_size(model);
    const double queries = model.query_rank > 0 ? product(model.query_rank, model.hidden) +
                                                      product(query_size(model) / tensor, model.query_rank)
                                                : product(query_size(model) / tensor, model.hidden);
    return out + queries + product(model.kv_rank + model.rotary_size, model.hidden) +
           product(keys / tensor, model.kv_rank);
  }
  return out + product((query_size(model) + 2 * model.kv_heads * model.head_size) / tensor, model.hidden);
}

// The core of attention, forward. Its passes over scores that a fused kernel does not need: written and read by the
// products, the softmax and the dropout of it.
void add_attention(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                   double tokens, PassSeconds& pass) {
  const double rate = machine.peak_of(wide(layout, machine)) * machine.factors.products * practice.attention;
  const double window = model.window > 0 ? std::min(model.window, model.sequence) : model.sequence;
  const double keys =
      layout.fused_attention ? (model.sequence / 2 + (model.window > 0 ? window : window / 2)) / 2 : model.sequence;
  pass.attention += 2 * tokens * keys * (query_size(model) + value_size(model)) / layout.tensor / rate;
  if (!layout.fused_attention) {
    constexpr double score_bytes = 13;
    pass.attention += memory_seconds(machine, score_bytes * tokens * model.sequence * model.heads / layout.tensor);
  }
}

// Rows of tokens to their experts and back.
double exchange_seconds(const ModelShape& model, const Layout& layout, const Group& across, double bytes,
                        double busiest) {
  const double part = bytes / layout.exchange_chunks;
  const double direct = all_to_all(across, part, busiest);
  // Sent once to each node that has an expert of it, a token travels less often than it has choices.
  const double nodes = across.nodes();
  const double copies = layout.once_a_node ? nodes * (1 - std::pow(1 - 1 / nodes, model.top_k)) : model.top_k;
  const double hops = all_to_all_two_level(across, part, busiest, std::min(1.0, copies / model.top_k));
  const double once = layout.exchange == Exchange::one_level    ? direct
                      : layout.exchange == Exchange::two_levels ? hops
                                                                : std::min(direct, hops);
  return 2 * layout.exchange_chunks * once;
}

// Experts and what surrounds them, forward.
void add_experts(const ModelShape& model, const Layout& layout, const Machine& machine, const Practice& practice,
                 double busiest, double tokens, PassSeconds& pass) {
  const bool split = layout.tensor_experts == TensorExperts::split;
  const bool parts = layout.tensor_experts == TensorExperts::parts;
  // Each rank of a tensor group sends its part of the tokens, or all of them.
  const double own = tokens / layout.tensor, sent = split ? tokens : own;
  const double width = machine.element_bytes(layout.precision);
  const double choices = sent * model.top_k, row = model.hidden * width;
  pass.products += product_seconds(machine, wide(layout, machine), split && !layout.sequence_parallel ? tokens : own,
                                   model.experts, model.hidden);
  const double rows = choices * (parts ? layout.expert_tensor : 1) * busiest;
  const double local = std::max(1.0, static_cast<double>(model.experts) / layout.expert);
  const double inner = model.expert_ffn / layout.expert_tensor;
  const double matrices = model.gated ? 2 : 1;
  const double products =
      local * (product_seconds(machine, layout.precision, rows / local, matrices * inner, model.hidden) +
               product_seconds(machine, layout.precision, rows / local, model.hidden, inner));
  pass.products += products;
  // Rows are packed before they travel and unpacked after it, on both sides and on both ways.
  pass.memory += memory_seconds(machine, (6 * choices + 4 * rows) * row, 4);
  pass.memory += memory_seconds(machine, rows * inner * (matrices + 1) * width);
  const Group across = group_of(machine, layout.expert_spans());
  pass.expert += exchange_seconds(model, layout, across, choices * row, busiest);
  if (layout.exchange_chunks > 1) {  // the first part hides behind nothing
    const double beside = pass.expert * (layout.exchange_chunks - 1) / layout.exchange_chunks;
    pass.expert -= std::min(practice.overlap * beside, products);
  }
  if (parts) {
    const Group within = group_of(machine, layout.expert_tensor, 1);
    const double gathered = choices * layout.expert_tensor * busiest * row;
    pass.expert += all_gather(within, gathered) + reduce_scatter(within, gathered);
  } else if (!split && !layout.sequence_parallel) {  // each rank had its part of the rows: all get them back
    pass.tensor += all_gather(group_of(machine, layout.tensor, layout.stride_of(Axis::tensor)), tokens * row);
  }
}

void add_ffn(const ModelShape& model, const Layout& layout, const Machine& machine, double inner_size, double tokens,
             PassSeconds& pass) {
  const double inner = inner_size / layout.tensor, matrices = model.gated ? 2 : 1;
  pass.products += product_seconds(machine, layout.precision, tokens, matrices * inner, model.hidden) +
                   product_seconds(machine, layout.precision, tokens, model.hidden, inner);
  pass.memory += memory_seconds(machine, tokens * inner * (matrices + 1) * machine.element_bytes(layout.precision));
}

// The host launches while the device computes: what it takes counts where the device would be done before it.
void wait_for_host(PassSeconds& pass, double launches, const Layout& layout, const Machine& machine) {
  if (machine.cores.count > 0) {  // host and device are one
    pass.launch = launches * machine.factors.launch;
    return;
  }
  const double busy = pass.total();
  pass.launch = layout.recorded ? 0 : std::max(0.0, launches * machine.factors.launch - busy);
}

}  // namespace

PassSeconds& PassSeconds::operator+=(const PassSeconds& other) {
  products += other.products;
  attention += other.attention;
  memory += other.memory;
  tensor += other.tensor;
  expert += other.expert;
  launch += other.launch;
  return *this;
}

PassSeconds PassSeconds::operator*(double times) const {
  return {products * times, attention * times, memory * times, tensor * times, expert * times, launch * times};
}

double product_seconds(const Machine& machine, Precision precision, double m, double n, double k) {
  const double bytes = machine.element_bytes(precision) * (m * (k + n) + k * n);
  return 2 * m * n * k / (machine.peak_of(precision) * machine.factors.products) + memory_seconds(machine, bytes);
}

bool routed_block(const ModelShape& model, int block) {
  return model.experts > 0 && block >= model.dense_layers && (block + 1) % model.routed_every == 0;
}

int routed_blocks(const ModelShape& model, int first, int count) {
  const int begin = std::max(first, model.dense_layers), end = first + count;
  return model.experts > 0 && end > begin ? end / model.routed_every - begin / model.routed_every : 0;
}

BlockSeconds block_seconds(const ModelShape& model, const Layout& layout, const Machine& machine,
                           const Practice& practice, bool routed, double busiest) {
  const double tokens = tokens_of(model, layout);
  const double width = machine.element_bytes(layout.precision), row = model.hidden * width;
  PassSeconds pass;
  pass.products = projections(model, layout, machine, tokens);
  add_attention(model, layout, machine, practice, tokens, pass);
  const PassSeconds core{0, pass.attention, 0, 0, 0, 0};
  if (!routed || model.shared_ffn > 0) {
    add_ffn(model, layout, machine, routed ? model.shared_ffn : model.ffn, tokens, pass);
  }
  // Two norms (read, written) and two sums with the residual (two reads, one write).
  pass.memory += memory_seconds(machine, 10 * tokens * row / (layout.sequence_parallel ? layout.tensor : 1), 4);
  if (routed) {
    add_experts(model, layout, machine, practice, busiest, tokens, pass);
  }
  const Group tensor = group_of(machine, layout.tensor, layout.stride_of(Axis::tensor));
  const bool whole_tokens = layout.tensor_experts == TensorExperts::split;  // other routed tokens are divided already
  const double sums = 1 + (!routed || model.shared_ffn > 0 ? 1 : 0) + (routed && whole_tokens ? 1 : 0);
  pass.tensor +=
      sums * (layout.sequence_parallel ? all_gather(tensor, tokens * row) + reduce_scatter(tensor, tokens * row)
                                       : all_reduce(tensor, tokens * row));
  if (layout.context > 1) {
    const Group context = group_of(machine, layout.context, layout.stride_of(Axis::context));
    if (layout.ulysses) {  // queries, keys and values there, the core's result back; too few key heads are repeated
      const double keys = std::max(model.kv_heads, layout.context * layout.tensor) * model.head_size;
      for (const double row_width : {query_size(model), keys, keys, value_size(model)}) {
        pass.tensor += all_to_all(context, tokens * row_width * width / layout.tensor);
      }
    } else {  // keys and values of all positions pass every rank
      pass.tensor +=
          all_gather(context, 2 * tokens * layout.context * model.kv_heads * model.head_size * width / layout.tensor);
    }
  }
  const double own_experts = layout.batched_experts ? 1 : static_cast<double>(model.experts) / layout.expert;
  if (layout.hidden_exchange) {  // behind the rest of the block, as far as one hides behind the other
    const double others = pass.total() - pass.expert;
    pass.expert -= std::min(practice.overlap * pass.expert, others);
  }
  const double of_expert = layout.precision > Precision::half ? narrow_expert_launches : expert_launches;
  double launches = routed ? routed_launches + of_expert * own_experts : dense_launches;
  if (machine.cores.count > 0) {
    const double in_products = machine.cores.expert / machine.factors.launch;
    launches = routed ? core_routed_products + core_expert_products * own_experts * in_products : core_dense_products;
  }
  BlockSeconds block;
  block.forward = pass;
  block.backward = pass;
  block.backward.products *= 2;
  block.backward.memory *= 2;
  block.backward.attention *= layout.fused_attention ? 2.5 : 2;
  block.weights = pass.products;
  if (layout.recompute == Recompute::full) {
    block.backward += pass;
  } else if (layout.recompute == Recompute::selective) {
    block.backward += core;
  } else if (layout.recompute == Recompute::activation) {
    const double inner = routed ? model.shared_ffn : model.ffn, matrices = model.gated ? 2 : 1;
    block.backward.memory += memory_seconds(machine, tokens * inner / layout.tensor * (matrices + 1) * width);
  }
  wait_for_host(block.forward, launches, layout, machine);
  wait_for_host(block.backward, (layout.recompute == Recompute::full ? 3 : 2) * launches, layout, machine);
  return block;
}

BlockSeconds embedding_seconds(const ModelShape& model, const Layout& layout, const Machine& machine) {
  const double bytes = tokens_of(model, layout) * model.hidden * machine.element_bytes(layout.precision);
  BlockSeconds block;
  block.forward.memory = memory_seconds(machine, 3 * bytes);
  block.forward.tensor = reduce_scatter(group_of(machine, layout.tensor, layout.stride_of(Axis::tensor)), bytes);
  block.backward.memory = memory_seconds(machine, 3 * bytes);
  return block;
}

BlockSeconds head_seconds(const ModelShape& model, const Layout& layout, const Machine& machine) {
  const double tokens = tokens_of(model, layout), columns = model.vocabulary / layout.tensor;
  BlockSeconds block;
  block.forward.products = product_seconds(machine, wide(layout, machine), tokens, columns, model.hidden);
  block.backward.products = 2 * block.forward.products;
  block.weights = block.forward.products;
  // Logits in fp32: written, read for the largest, for the sum and for the loss; the gradient in place, and as halves.
  block.forward.memory = memory_seconds(machine, 16 * tokens * columns, 4);
  block.backward.memory = memory_seconds(machine, 14 * tokens * columns, 2);
  const bool cores = machine.cores.count > 0;
  wait_for_host(block.forward, cores ? core_head_products : head_launches, layout, machine);
  wait_for_host(block.backward, cores ? 2 * core_head_products : head_launches, layout, machine);
  return block;
}

BlockParameters block_parameters(const ModelShape& model, const Layout& layout, bool routed) {
  const double matrices = model.gated ? 3 : 2, tensor = layout.tensor;
  BlockParameters count;
  const double q = query_size(model), v = value_size(model);
  if (model.kv_rank > 0) {
    const double keys = model.heads * (model.head_size - model.rotary_size) + v;
    count.dense = (model.query_rank > 0 ? model.hidden * model.query_rank + model.query_rank * q / tensor
                                        : model.hidden * q / tensor) +
                  model.hidden * (model.kv_rank + model.rotary_size) + model.kv_rank * keys / tensor +
                  v * model.hidden / tensor + model.query_rank + model.kv_rank;
  } else {
    const double kv = model.kv_heads * model.head_size;
    count.dense = model.hidden * (q + 2 * kv + v) / tensor + (model.biases ? (q + 2 * kv) / tensor + model.hidden : 0);
  }
  const double inner = routed ? model.shared_ffn : model.ffn;
  count.dense += matrices * model.hidden * inner / tensor;
  if (model.biases && inner > 0) {
    count.dense += (matrices - 1) * inner / tensor + model.hidden;
  }
  count.dense += (model.biases ? 4 : 2) * model.hidden;  // two norms
  if (routed) {
    count.dense += model.hidden * model.experts;
    count.routed = model.experts / static_cast<double>(layout.expert) *
                   (matrices * model.hidden * model.expert_ffn / layout.expert_tensor +
                    (model.biases ? (matrices - 1) * model.expert_ffn / layout.expert_tensor + model.hidden : 0));
  }
  return count;
}

double embedding_parameters(const ModelShape& model, const Layout& layout) {
  return model.vocabulary * model.hidden / layout.tensor;
}

}  // namespace orthant::cost
