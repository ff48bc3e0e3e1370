// The experts of one layer. Token dispatch: rows of tokens are packed by expert and travel to the ranks of their
// experts, through their FFNs, and back; where they travel in chunks, one chunk is on the way while another is
// computed. Shared experts, which every token visits, are beside (shared_experts.h).
//
// Rows: n, y and their gradients are those of region norm; the routed experts get the choices of tokens_X, those of
// region experts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"
#include "experts/expert_biases.h"
#include "experts/shared_experts.h"
#include "router/router.h"

namespace orthant {

class Entered;  // core/layers/entered.h

class Experts {
 public:
  // The group of `store` that holds the routed experts of a layer, and what SharedExperts takes.
  Experts(const ParamStore& store, const std::string& stem, const Plan& plan, int layer);

  // n -> what the routed experts make of it, weighted and summed. Plans the exchange of rows in `routing`, where that
  // is left to do.
  Tensor forward(const StepContext& ctx, const Tensor& n, Routing& routing, Saved& saved) const;
  struct Gradients {
    Tensor n, weight;  // as n; f32 [tokens_X, K], of Routing::dispatch.weight
  };
  Gradients backward(const StepContext& ctx, const Tensor& dy, const Routing& routing, Saved& saved) const;

  // y += what the shared experts make of n; nothing where there are none.
  void add_shared(const StepContext& ctx, const Tensor& y, const Tensor& n, Saved& saved) const;
  // The gradient of n; undefined where there are none.
  Tensor shared_backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  struct Weights {
    Tensor in, out;  // [local experts, n, d], [local experts, d, f]
  };
  Weights view(const Tensor& flat) const;
  // The group's gradients are nothing but the experts' products: the first ones overwrite what is there.
  float beta() const;

  // Keepers that ask are told how many rows each local expert is about to compute.
  void tell_rows(const StepContext& ctx, const Routing& routing) const;
  // Calls `work` with the stream on which the products with the group's weights are made.
  void with_products(const StepContext& ctx, const std::function<void(Stream&)>& work) const;
  // Of tokens whose experts are all on this rank: x, y [tokens_X, d].
  void forward_here(const StepContext& ctx, const Tensor& y, const Tensor& x, const Dispatch& dispatch,
                    Saved& saved) const;
  void backward_here(const StepContext& ctx, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                     const Dispatch& dispatch, Saved& saved) const;
  // The same with the operations of expert_ffn one by one. Forward, where experts have biases; backward, where they
  // have biases or do not train.
  void forward_rows(const StepContext& ctx, const Tensor& y, const Tensor& h, const Tensor& x,
                    const Dispatch& dispatch) const;
  void backward_rows(const StepContext& ctx, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                     const Entered& x, const Tensor& h, const Dispatch& dispatch) const;

  // Through a token exchange. Who gets how many rows: counts i32 [E] of this rank's for each expert. While the host
  // waits for the other ranks' counts, the device does what `meanwhile` enqueues.
  ExchangePlan plan(const StepContext& ctx, const Tensor& counts, const std::function<void()>& meanwhile) const;
  // packed [R, d], as Stream::pack orders them -> what the experts make of them, [R, d] in the same order.
  Tensor exchanged(const StepContext& ctx, const Tensor& packed, const ExchangePlan& plan, Saved& saved) const;
  // d_out [R, d]: the gradient of the tokens' sums, packed and without weights; weight f32 [R, 1], each packed row's.
  // Returns the gradients of both.
  Gradients exchanged_backward(const StepContext& ctx, const Tensor& d_out, const Tensor& weight,
                               const ExchangePlan& plan, Saved& saved) const;

  // A run of local experts, and their rows on this rank.
  struct Chunk {
    int number = 0;
    Range experts, rows;
    Tensor offset;  // i32: of each expert's rows among the chunk's, and their end
    Tensor of(const Tensor& t) const { return t.rows(rows.begin, rows.count); }
    Tensor weights(const Tensor& t) const { return t.rows(experts.begin, experts.count); }
  };
  Chunk chunk(const ExchangePlan& plan, int number, int chunks, Stream& s) const;
  struct Way {
    Tensor to, from;
  };
  // `there` to the experts, from [R, ...] rows to [R', ...]; `work` on each chunk; then `back`, from [R', ...] to [R,
  // ...].
  void travel(const StepContext& ctx, const ExchangePlan& plan, std::span<const Way> there, std::span<const Way> back,
              const std::function<void(const Chunk&)>& work) const;

  ParamGroup* group_;
  Activation activation_;
  std::int64_t local_experts_, hidden_, width_;  // hidden: n = f or 2f, width: f, of the part that this rank holds
  // Beside the main stream: where rows travel in chunks, and counts where the host would have to wait for it.
  std::unique_ptr<Stream> side_;
  std::optional<ExpertBiases> biases_;
  std::optional<SharedExperts> shared_;
};

}  // namespace orthant
