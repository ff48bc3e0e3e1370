#include "blocks.h"

#include <string>
#include <utility>

#include <orthant/blocks.h>
#include <orthant/part.h>
#include <orthant/settings.h>

#include "chain.h"
#include "cross_attention.h"
#include "relative_attention.h"
#include "settings.h"

namespace orthant::encoder_decoder {
namespace {

// Norm, a part, dropout, and the sum with what entered. The part: any map of [T, d].
class Branch {
 public:
  Branch(const std::string& norm, std::uint32_t site, const Parameters& parameters, const Plan& plan)
      : norm_(make_norm(norm, parameters, plan)), site_(site) {}

  Tensor enter(const StepContext& ctx, const Tensor& x, Saved& saved) const { return norm_->forward(ctx, x, saved); }
  // y + x, in memory of y.
  Tensor leave(const StepContext& ctx, Tensor y, const Tensor& x) const {
    y = branch_dropout(ctx, std::move(y), site_);
    ctx.stream.add(y, x);
    return y;
  }
  // Of what the part has put out. dy stays as it is: the residual path keeps it.
  Tensor leave_backward(const StepContext& ctx, const Tensor& dy) const {
    if (ctx.settings().model.dropout <= 0) {
      return dy;
    }
    const Tensor d = ctx.device().empty(dy.dtype(), dy.shape());
    ctx.stream.copy(d, dy);
    return branch_dropout(ctx, d, site_);
  }
  // dy += the gradient of what entered.
  void enter_backward(const StepContext& ctx, const Tensor& dy, const Tensor& dn, Saved& saved) const {
    ctx.stream.add(dy, norm_->backward(ctx, dn, saved));
  }

 private:
  std::unique_ptr<PartLayer> norm_;
  std::uint32_t site_;
};

// Three sites for each link, behind the embedding's.
std::uint32_t site_of(const Link& link, int branch) {
  return static_cast<std::uint32_t>(3 * link.number + branch + 1);
}

std::unique_ptr<PartLayer> make_last(const Link& link, const std::string& stem, const Parameters& parameters,
                                     Plan& plan) {
  if (!link.router.empty()) {
    return make_experts(link, parameters, plan);
  }
  const Settings& s = plan.settings();
  return s.catalogue->get<FfnPart>(s.model.ffn).make({s, link.block, stem + ".mlp"}, parameters, plan);
}

class SourceEmbedding final : public Layer {
 public:
  explicit SourceEmbedding(std::unique_ptr<Layer> embedding) : embedding_(std::move(embedding)) {}
  Bundle forward(const StepContext& ctx, const Bundle&, Saved& saved) override {
    return embedding_->forward(ctx.in(source_space), {}, saved);
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    return embedding_->backward(ctx.in(source_space), dy, saved);
  }

 private:
  std::unique_ptr<Layer> embedding_;
};

class EncoderBlock final : public Layer {
 public:
  EncoderBlock(const Link& link, const Parameters& parameters, Plan& plan)
      : stem_(encoder_stem(link.block)),
        self_(stem_ + ".self_norm", site_of(link, 0), parameters, plan),
        last_(stem_ + ".mlp_norm", site_of(link, 1), parameters, plan),
        attention_(make_relative_attention(stem_ + ".self_attn", encoder_table, true, parameters, plan)),
        ffn_(make_last(link, stem_, parameters, plan)) {}

  Bundle forward(const StepContext& whole, const Bundle& in, Saved& saved) override {
    const StepContext ctx = whole.in(source_space);
    const Tensor y = self_.leave(ctx, attention_->forward(ctx, self_.enter(ctx, in[0], saved), saved), in[0]);
    return {last_.leave(ctx, ffn_->forward(ctx, last_.enter(ctx, y, saved), saved), y)};
  }
  Bundle backward(const StepContext& whole, const Bundle& from, Saved& saved) override {
    const StepContext ctx = whole.in(source_space);
    const Tensor& dy = from[0];
    last_.enter_backward(ctx, dy, ffn_->backward(ctx, last_.leave_backward(ctx, dy), saved), saved);
    self_.enter_backward(ctx, dy, attention_->backward(ctx, self_.leave_backward(ctx, dy), saved), saved);
    return {dy};
  }

 private:
  std::string stem_;
  Branch self_, last_;
  std::unique_ptr<PartLayer> attention_, ffn_;
};

class Bridge final : public Layer {
 public:
  Bridge(std::unique_ptr<Layer> embedding, const Parameters& parameters, const Plan& plan)
      : norm_(make_norm(encoder_norm, parameters, plan)), embedding_(std::move(embedding)) {}
  Bundle forward(const StepContext& ctx, const Bundle& in, Saved& saved) override {
    const Tensor memory = norm_->forward(ctx.in(source_space), in[0], saved);
    return {memory, embedding_->forward(ctx, {}, saved).front()};
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    embedding_->backward(ctx, {dy[1]}, saved);
    return {norm_->backward(ctx.in(source_space), dy[0], saved)};
  }

 private:
  std::unique_ptr<PartLayer> norm_;
  std::unique_ptr<Layer> embedding_;
};

class DecoderBlock final : public Layer, public GrowingBlock {
 public:
  DecoderBlock(const Link& link, const Parameters& parameters, Plan& plan)
      : stem_(decoder_stem(link.block - static_cast<int>(encoder_layers(plan.settings())))),
        is_last_(link.passes.size() == 1),
        self_(stem_ + ".self_norm", site_of(link, 0), parameters, plan),
        cross_(stem_ + ".cross_norm", site_of(link, 1), parameters, plan),
        last_(stem_ + ".mlp_norm", site_of(link, 2), parameters, plan),
        attention_(make_relative_attention(stem_ + ".self_attn", decoder_table, false, parameters, plan)),
        to_source_(stem_ + ".cross_attn", link.block, parameters, plan),
        ffn_(make_last(link, stem_, parameters, plan)) {}

  Bundle forward(const StepContext& ctx, const Bundle& in, Saved& saved) override {
    const Tensor &memory = in[0], &x = in[1];
    const Tensor y = self_.leave(ctx, attention_->forward(ctx, self_.enter(ctx, x, saved), saved), x);
    const Tensor z = cross_.leave(ctx, to_source_.forward(ctx, cross_.enter(ctx, y, saved), memory, saved), y);
    const Tensor out = last_.leave(ctx, ffn_->forward(ctx, last_.enter(ctx, z, saved), saved), z);
    return is_last_ ? Bundle{out} : Bundle{memory, out};
  }
  Bundle backward(const StepContext& ctx, const Bundle& from, Saved& saved) override {
    const Tensor& dy = from.back();
    last_.enter_backward(ctx, dy, ffn_->backward(ctx, last_.leave_backward(ctx, dy), saved), saved);
    const auto [dn, dmemory] = to_source_.backward(ctx, cross_.leave_backward(ctx, dy), saved);
    cross_.enter_backward(ctx, dy, dn, saved);
    self_.enter_backward(ctx, dy, attention_->backward(ctx, self_.leave_backward(ctx, dy), saved), saved);
    if (!is_last_) {
      ctx.stream.add(dmemory, from[0]);
    }
    return {dmemory, dy};
  }

  CrossAttention::Kept keep(const StepContext& source, const Tensor& memory) const override {
    return to_source_.keep(source, memory);
  }
  Tensor step(const StepContext& ctx, const Tensor& x, const std::vector<KeptRows>& rows,
              const std::vector<CrossAttention::Run>& runs) const override {
    Saved unused;
    const Tensor y = self_.leave(ctx, attention_->step(ctx, self_.enter(ctx, x, unused), rows), x);
    const Tensor z = cross_.leave(ctx, to_source_.step(ctx, cross_.enter(ctx, y, unused), runs), y);
    return last_.leave(ctx, ffn_->forward(ctx, last_.enter(ctx, z, unused), unused), z);
  }

 private:
  std::string stem_;
  bool is_last_;
  Branch self_, cross_, last_;
  std::unique_ptr<RelativeAttention> attention_;
  CrossAttention to_source_;
  std::unique_ptr<PartLayer> ffn_;
};

}  // namespace

std::unique_ptr<Layer> make_source_embedding(std::unique_ptr<Layer> embedding) {
  return std::make_unique<SourceEmbedding>(std::move(embedding));
}
std::unique_ptr<Layer> make_encoder_block(const Link& link, const Parameters& parameters, Plan& plan) {
  return std::make_unique<EncoderBlock>(link, parameters, plan);
}
std::unique_ptr<Layer> make_bridge(std::unique_ptr<Layer> embedding, const Parameters& parameters, Plan& plan) {
  return std::make_unique<Bridge>(std::move(embedding), parameters, plan);
}
std::unique_ptr<Layer> make_decoder_block(const Link& link, const Parameters& parameters, Plan& plan) {
  return std::make_unique<DecoderBlock>(link, parameters, plan);
}
std::unique_ptr<GrowingBlock> make_growing_block(const Link& link, const Parameters& parameters, Plan& plan) {
  return std::make_unique<DecoderBlock>(link, parameters, plan);
}

}  // namespace orthant::encoder_decoder
