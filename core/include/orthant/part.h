// Part: what a block is made of. Two nouns: AttentionPart, chosen by model.attention, and FfnPart, by model.ffn.
//
// A block is x + attention(norm(x)), then that + ffn(norm(that)). The core owns norms, dropout, residual sums and
// experts; a part is the map between a norm and a residual sum. Blocks with experts have no FfnPart.
//
// A part says three things. Which parameters it has, with the dims of the model that divide them: the core then slices,
// initialises, shards, sums, saves and exports them under any layout. What one token costs, so that a pipeline is cut
// evenly. How forward and backward are computed, written out; there is no tape.
//
//   class Mine final : public FfnPart { ... };
//   catalogue.add<FfnPart>("mine", "One sentence.", std::make_shared<Mine>());   // in Plugin::add_to
//
// Under a layout a rank holds slices. Forward begins with ctx.cross({region, Side::enter}, n) and ends with
// ctx.cross({region, Side::leave}, y); backward takes cross_back of both in reverse. What lies
// between is ordinary code over slices: a matrix [f, d] whose rows are split by Dim::ffn is [f_r, d] there.
//
// Thread safety: a Part is shared by all ranks of a process; its methods are const and safe to call at the same time. A
// PartLayer belongs to one rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <orthant/abi/part.h>
#include <orthant/keys.h>
#include <orthant/param_group.h>
#include <orthant/plan.h>
#include <orthant/seams.h>
#include <orthant/step_context.h>

namespace orthant {

struct Settings;

// One part of one block on one rank. Forward pushes onto `saved` what backward pops, in reverse order.
class PartLayer {
 public:
  virtual ~PartLayer() = default;
  // n [T, d] in the compute dtype, the norm's output; returns [T, d], before dropout and the residual sum. T: the rows
  // that this rank holds in Region::norm. n stays as it is.
  virtual Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const = 0;
  // dy [T, d]; returns dn [T, d], in memory of its own. Adds to the gradients of its parameters. dy stays as it is.
  virtual Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const = 0;
};

// The place of a part in the model.
struct PartPlace {
  const Settings& settings;
  int block = 0;     // from 0; those of model.mtp_depth come last
  std::string stem;  // "model.layers.3.mlp": the name of each of its parameters begins with it and a dot
};

class Part {
 public:
  virtual ~Part() = default;
  // The keys that it reads beside those that every kind has (keys.h). By default none.
  virtual std::vector<KindKey> keys() const { return {}; }
  // By default nothing: a part refuses itself what it takes no notice of.
  virtual std::vector<Refusal> refusals(const Settings&) const { return {}; }
  // The parameters of this block, in the order of their flat buffer: neighbours of equal rows can be one ParamMatrix. A
  // pure function. The core sets ParamSpec::layers. Errors: ConfigError for settings that it cannot work with
  // (SettingError names the key).
  virtual std::vector<ParamSpec> parameters(const PartPlace& place) const = 0;
  // Floating-point operations of one token's forward pass in this block; a product of [1, k] and [k, n] is 2 k n.
  virtual double flops(const Settings& settings, int block) const = 0;
  // `parameters` has those that this rank holds; it and the plan outlive the layer.
  virtual std::unique_ptr<PartLayer> make(const PartPlace& place, const Parameters& parameters,
                                          const Plan& plan) const = 0;
};

// From d_model to d_model, with tokens of one document seeing each other. Its stem ends with self_attn, its region is
// Region::attention; Region::attention_core is where softmax(QK')V may hold other positions and fewer heads.
struct AttentionPart : Part {
  static constexpr const char* noun = "attention";
  // By default what takes sinks, caps, scales or blocks without the window, and heads that do not divide the model.
  std::vector<Refusal> refusals(const Settings& settings) const override;
  // Channels of a head's queries and keys: by default model.head_dim, or else d_model / heads.
  virtual std::int64_t head_dim(const Settings& settings) const;
  // Those of them that rotary positions turn: by default model.rotary_channels, or else all.
  virtual std::int64_t rotary_channels(const Settings& settings) const;
};
// From d_model to d_model, each token by itself. Its stem ends with mlp, its region is Region::ffn.
struct FfnPart : Part {
  static constexpr const char* noun = "ffn";
};

// The deviation of initial weights that write into the residual stream: smaller with more blocks (GPT-2), so that the
// stream's variance does not grow with depth.
float residual_std(const Settings& settings);

// y [T, n] = x [T, k] w [n, k]^T.
Tensor linear(const StepContext& ctx, const Tensor& x, const Tensor& w);
// dx [T, k] = dy [T, n] w; dw [n, k] += dy^T x, unless dw is undefined (ParamRef::wanted_grad).
Tensor linear_backward(const StepContext& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dw);
// y [T, n] += b [1, n], in every row; b in the compute dtype.
void add_bias(const StepContext& ctx, const Tensor& y, const Tensor& b);
// db f32 [1, n] += the sum of dy's rows.
void add_bias_backward(const StepContext& ctx, const Tensor& db, const Tensor& dy);

}  // namespace orthant
