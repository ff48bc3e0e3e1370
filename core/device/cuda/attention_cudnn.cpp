#include "core/device/cuda/attention_cudnn.h"

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/device/cuda/attention_choice.h"
#include "core/device/cuda/cuda_stream.h"

namespace orthant::cuda {
namespace {

namespace graph = cudnn_frontend::graph;
using TensorOfGraph = std::shared_ptr<graph::Tensor_attributes>;

enum Uid : std::int64_t { uid_q = 1, uid_k, uid_v, uid_o, uid_lse, uid_d_o, uid_dq, uid_dk, uid_dv };

constexpr int workspace_slot = 1;

void check(cudnnStatus_t status, const char* what) {
  require(status == CUDNN_STATUS_SUCCESS, "attention: cuDNN: {}: {}", what, cudnnGetErrorString(status));
}

bool aligned(std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors) {
    if (reinterpret_cast<std::uintptr_t>(t.data()) % 16 != 0) {
      return false;
    }
  }
  return true;
}

// A graph of `part`, whose heads lie in tensors of the whole shape.
struct Graph {
  graph::Graph graph;
  AttentionPart part;
  AttentionShape whole;

  std::int64_t heads() const { return part.kv_heads * (whole.heads / whole.kv_heads); }

  // One of [T, heads_of_row c], as cuDNN's [batch, heads, positions, c].
  void place(graph::Tensor_attributes& t, Uid uid, std::int64_t heads_of_part, std::int64_t heads_of_row) const {
    const std::int64_t row = heads_of_row * whole.head_dim;
    t.set_uid(uid)
        .set_dim({part.batch, heads_of_part, whole.positions, whole.head_dim})
        .set_stride({whole.positions * row, whole.head_dim, row, 1})
        .set_data_type(cudnn_frontend::DataType_t::BFLOAT16);
  }
  // lse f32 [batch, h, positions]. Parts of a sequence's heads have one sequence: the heads are dense all the same.
  void place_lse(graph::Tensor_attributes& t) const {
    t.set_uid(uid_lse)
        .set_dim({part.batch, heads(), whole.positions, 1})
        .set_stride({heads() * whole.positions, whole.positions, 1, 1})
        .set_data_type(cudnn_frontend::DataType_t::FLOAT);
  }
  TensorOfGraph wide(Uid uid) {
    graph::Tensor_attributes t;
    place(t, uid, heads(), whole.heads);
    return graph.tensor(t);
  }
  TensorOfGraph narrow(Uid uid) {
    graph::Tensor_attributes t;
    place(t, uid, part.kv_heads, whole.kv_heads);
    return graph.tensor(t);
  }

  template <class Attributes>
  Attributes causal(const char* name) const {
    Attributes how;
    how.set_name(name)
        .set_attn_scale(1.0f / std::sqrt(static_cast<float>(whole.head_dim)))
        .set_diagonal_alignment(cudnn_frontend::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    return how;
  }

  void add_forward() {
    const auto [o, lse] = graph.sdpa(wide(uid_q), narrow(uid_k), narrow(uid_v),
                                     causal<graph::SDPA_attributes>("attention").set_generate_stats(true));
    place(o->set_output(true), uid_o, heads(), whole.heads);
    place_lse(lse->set_output(true));
  }
  void add_backward(bool deterministic) {
    graph::Tensor_attributes lse;
    place_lse(lse);
    const auto [dq, dk, dv] = graph.sdpa_backward(
        wide(uid_q), narrow(uid_k), narrow(uid_v), wide(uid_o), wide(uid_d_o), graph.tensor(lse),
        causal<graph::SDPA_backward_attributes>("attention_backward").set_deterministic_algorithm(deterministic));
    place(dq->set_output(true), uid_dq, heads(), whole.heads);
    place(dk->set_output(true), uid_dk, part.kv_heads, whole.kv_heads);
    place(dv->set_output(true), uid_dv, part.kv_heads, whole.kv_heads);
  }
};

// A graph that cuDNN has a plan for, or null and why not.
struct Planned {
  std::unique_ptr<Graph> graph;
  std::string refusal;
};

Planned plan(cudnnHandle_t handle, bool backward, bool deterministic, const AttentionShape& s) {
  auto made = std::make_unique<Graph>();
  made->whole = s;
  // Parts are for the scores that a deterministic backward keeps.
  made->part = backward && deterministic ? attention_part(s) : AttentionPart{s.batch, s.kv_heads};
  if (!part_sums_aligned(s, made->part)) {
    return {nullptr, "the sums of its parts would not begin at multiples of 16 bytes"};
  }
  made->graph.set_io_data_type(cudnn_frontend::DataType_t::BFLOAT16)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
  if (backward) {
    made->add_backward(deterministic);
  } else {
    made->add_forward();
  }
  auto status = made->graph.build(handle, {cudnn_frontend::HeurMode_t::A});
  if (!status.is_good()) {
    return {nullptr, status.get_message()};
  }
  if (made->graph.get_workspace_size() > 2 * most_part_bytes) {
    return {nullptr, "it asks for too much memory"};
  }
  return {std::move(made), ""};
}

}  // namespace

struct CudnnAttention::Plans {
  using Key = std::tuple<bool, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  cudnnHandle_t handle = nullptr;
  bool deterministic = true;                     // run.deterministic
  std::map<Key, std::unique_ptr<Graph>> graphs;  // null: cuDNN has none

  ~Plans() {
    graphs.clear();
    if (handle != nullptr) {
      cudnnDestroy(handle);
    }
  }

  // Null where cuDNN has no plan.
  Graph* find(bool backward, const AttentionShape& s) {
    const auto [at, is_new] =
        graphs.try_emplace(Key{backward, s.batch, s.positions, s.heads, s.kv_heads, s.head_dim}, nullptr);
    if (is_new) {
      at->second = build(backward, s);
    }
    return at->second.get();
  }

  std::unique_ptr<Graph> build(bool backward, const AttentionShape& s) const {
    std::string refusals;
    for (const BackwardPlan wanted : backward ? backward_plans(deterministic) : backward_plans(true)) {
      Planned planned = plan(handle, backward, wanted == BackwardPlan::deterministic, s);
      if (planned.graph != nullptr) {
        return std::move(planned.graph);
      }
      refusals += (refusals.empty() ? "" : "; its deterministic one: ") + planned.refusal;
    }
    const std::string note = fmt::format(
        "orthant: cuDNN {} has no {}{} for {} heads ({} KV) of {} channels and {} positions; kernels of "
        "our own are used ({})\n",
        cudnnGetVersion(), backward && deterministic ? "deterministic " : "",
        backward ? "attention_backward" : "attention", s.heads, s.kv_heads, s.head_dim, s.positions, refusals);
    std::fputs(note.c_str(), stderr);  // which may be closed: no reason to stop
    return nullptr;
  }

  void execute(CudaStream& stream, Graph& g, std::unordered_map<std::int64_t, void*>& data) {
    const auto bytes = static_cast<std::size_t>(g.graph.get_workspace_size());
    void* const workspace = stream.scratch(workspace_slot, bytes);
    std::vector<std::uintptr_t> key;  // in the order of the tensors' names
    for (const auto& [uid, address] : std::map(data.begin(), data.end())) {
      key.push_back(reinterpret_cast<std::uintptr_t>(address));
    }
    auto run = [this, &g, data, workspace](cudaStream_t) mutable {
      auto status = g.graph.execute(handle, data, workspace);
      require(status.is_good(), "attention: cuDNN {}: {}", cudnnGetVersion(), status.get_message());
    };
    stream.handle().give("attention", run, std::as_bytes(std::span(key)), &g, workspace);
  }
};

CudnnAttention::CudnnAttention(CudaStream& stream) : stream_(stream), plans_(std::make_unique<Plans>()) {
  check(cudnnCreate(&plans_->handle), "making a handle");
  check(cudnnSetStream(plans_->handle, stream.handle().handle()), "setting the stream");
  plans_->deterministic = stream.cuda().deterministic();
}

CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::forward(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionShape& shape) {
  Graph* const g = aligned({o, lse, q, k, v}) ? plans_->find(false, shape) : nullptr;
  if (g == nullptr) {
    return false;
  }
  std::unordered_map<std::int64_t, void*> data{
      {uid_q, q.data()}, {uid_k, k.data()}, {uid_v, v.data()}, {uid_o, o.data()}, {uid_lse, lse.data()}};
  plans_->execute(stream_, *g, data);
  return true;
}

bool CudnnAttention::backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o, const Tensor& q,
                              const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                              const AttentionShape& shape) {
  Graph* const g = aligned({dq, dk, dv, d_o, q, k, v, o, lse}) ? plans_->find(true, shape) : nullptr;
  if (g == nullptr) {
    return false;
  }
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t b = 0; b < shape.batch; b += g->part.batch) {
    for (std::int64_t kv = 0; kv < shape.kv_heads; kv += g->part.kv_heads) {
      const std::int64_t t = b * shape.positions, h = kv * group;
      const auto wide = [&](const Tensor& x) {
        return static_cast<void*>(x.as<std::uint16_t>() + (t * shape.heads + h) * shape.head_dim);
      };
      const auto narrow = [&](const Tensor& x) {
        return static_cast<void*>(x.as<std::uint16_t>() + (t * shape.kv_heads + kv) * shape.head_dim);
      };
      std::unordered_map<std::int64_t, void*> data{
          {uid_q, wide(q)},     {uid_k, narrow(k)},
          {uid_v, narrow(v)},   {uid_o, wide(o)},
          {uid_d_o, wide(d_o)}, {uid_lse, lse.as<float>() + (b * shape.heads + h) * shape.positions},
          {uid_dq, wide(dq)},   {uid_dk, narrow(dk)},
          {uid_dv, narrow(dv)}};
      plans_->execute(stream_, *g, data);
    }
  }
  return true;
}

}  // namespace orthant::cuda
