#include <orthant/blocks.h>

#include <utility>

#include <orthant/part.h>
#include <orthant/settings.h>

#include "chain.h"
#include "layers.h"
#include "settings.h"

namespace orthant::encoder {
namespace {

std::unique_ptr<PartLayer> make_second(const Link& link, const std::string& stem, const Parameters& parameters,
                                       Plan& plan) {
  if (!link.router.empty()) {
    return make_experts(link, parameters, plan);
  }
  const Settings& s = plan.settings();
  if (has_own_ffn(s)) {
    return make_ffn(s, stem + ".mlp", parameters);
  }
  return s.catalogue->get<FfnPart>(s.model.ffn).make({s, link.block, stem + ".mlp"}, parameters, plan);
}

Tensor copy_of(const StepContext& ctx, const Tensor& t) {
  Tensor copy = ctx.device().empty(t.dtype(), t.shape());
  ctx.stream.copy(copy, t);
  return copy;
}

// A map f of [T, d], with a norm before it or behind its sum with what entered:
//   before: x + f(norm(x))    after: norm(x + f(x))
class NormedBranch {
 public:
  // norm: null for none, before f alone.
  NormedBranch(std::unique_ptr<PartLayer> norm, std::unique_ptr<PartLayer> f, bool after, std::uint32_t site)
      : norm_(std::move(norm)), f_(std::move(f)), after_(after), site_(site) {}

  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) const {
    const Tensor n = after_ || norm_ == nullptr ? x : norm_->forward(ctx, x, saved);
    const Tensor y = branch_dropout(ctx, f_->forward(ctx, n, saved), site_);
    ctx.stream.add(y, x);
    return after_ ? norm_->forward(ctx, y, saved) : y;
  }
  // dx, in dy's memory or in memory of its own.
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
    const Tensor d = after_ ? norm_->backward(ctx, dy, saved) : dy;  // of the sum: the residual path keeps it
    const bool drops = ctx.settings().model.dropout > 0;
    Tensor dn = f_->backward(ctx, drops ? branch_dropout(ctx, copy_of(ctx, d), site_) : d, saved);
    if (!after_ && norm_ != nullptr) {
      dn = norm_->backward(ctx, dn, saved);
    }
    ctx.stream.add(d, dn);
    return d;
  }

 private:
  std::unique_ptr<PartLayer> norm_, f_;
  bool after_;
  std::uint32_t site_;
};

class EncoderBlock final : public Layer {
 public:
  EncoderBlock(const Link& link, const Parameters& parameters, Plan& plan)
      : first_(branch(link, 0, parameters, plan)), second_(branch(link, 1, parameters, plan)) {}

  Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) override {
    return {second_.forward(ctx, first_.forward(ctx, x.front(), saved), saved)};
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    return {first_.backward(ctx, second_.backward(ctx, dy.front(), saved), saved)};
  }

 private:
  static NormedBranch branch(const Link& link, int which, const Parameters& parameters, Plan& plan) {
    const Settings& s = plan.settings();
    const bool after = encoder_keys(s).post_norm;
    const std::string stem = block_stem(link.block), norm = stem + (which == 0 ? norm_before : norm_between);
    std::unique_ptr<PartLayer> f =
        which == 0 ? s.catalogue->get<AttentionPart>(s.model.attention)
                         .make({s, attention_block(s, link.block), stem + ".self_attn"}, parameters, plan)
                   : make_second(link, stem, parameters, plan);
    const bool has_norm = which == 1 || has_first_norm(s, link.block);
    return {has_norm ? make_norm(norm, parameters, plan) : nullptr, std::move(f), after,
            dropout_site(link.number, which)};
  }

  NormedBranch first_, second_;
};

}  // namespace

int attention_block(const Settings& s, int block) {
  if (!encoder_keys(s).full_attention_first) {
    return block;
  }
  const int every = static_cast<int>(s.model.full_attention_every);
  return block % every == 0 ? every - 1 : 0;
}

std::unique_ptr<Layer> make_block(const Link& link, const Parameters& parameters, Plan& plan) {
  return recomputed(std::make_unique<EncoderBlock>(link, parameters, plan));
}

}  // namespace orthant::encoder
