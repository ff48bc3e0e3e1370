#include "vit.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include <orthant/catalogue.h>
#include <orthant/sizes.h>

#include "branch.h"
#include "gates.h"
#include "patch_embedding.h"
#include "settings.h"
#include "soft_experts.h"

namespace orthant::images {

std::string block_stem(int block) {
  return "model.layers." + std::to_string(block);
}

namespace {

double inference_capacity(const Settings& s) {
  return read_keys<InferenceKeys>(kind_values(s, "moe")).capacity_at_inference;
}

// A block whose experts have another capacity where nothing is trained.
class OtherCapacity final : public Layer {
 public:
  OtherCapacity(std::unique_ptr<Layer> block, double share) : block_(std::move(block)), share_(share) {}
  Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) override {
    if (ctx.training) {
      return block_->forward(ctx, x, saved);
    }
    StepContext measured = ctx;
    measured.capacity_share = share_;
    return block_->forward(measured, x, saved);
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    return block_->backward(ctx, dy, saved);
  }
  std::vector<ParamGroup*> grown_in_forward() const override { return block_->grown_in_forward(); }
  const ParamRef* overwritten() const override { return block_->overwritten(); }

 private:
  std::unique_ptr<Layer> block_;
  double share_;  // of moe.capacity_factor
};

class Vit final : public ModelKind {
 public:
  std::vector<KindKey> keys() const override {
    std::vector<KindKey> keys = PatchKeys::keys().declared();
    std::ranges::move(InferenceKeys::keys().declared(), std::back_inserter(keys));
    return keys;
  }

  std::vector<Refusal> refusals(const Settings& s) const override {
    std::vector<Refusal> found = wrong_sizes(s);
    const auto refuse = [&](bool wrong, const char* key, const char* what, const char* advice) {
      if (wrong) {
        found.push_back({{key}, what, advice});
      }
    };
    refuse(s.model.positions != Positions::learned, "model.positions",
           "[model] positions: kind \"vit\" has a learned row for each patch", "write positions = \"learned\"");
    refuse(s.model.tie_embeddings, "model.tie_embeddings",
           "[model] tie_embeddings: kind \"vit\" has classes, and no table of tokens", "leave it out");
    refuse(s.model.mtp_depth > 0, "model.mtp_depth", "[model] mtp_depth: kind \"vit\" predicts no next token",
           "leave it out");
    refuse(s.model.sliding_window > 0, "model.sliding_window", "[model] sliding_window: kind \"vit\" has none",
           "leave it out");
    refuse(s.model.embedding_scale != 1, "model.embedding_scale", "[model] embedding_scale: kind \"vit\" has none",
           "leave it out");
    const double inference = inference_capacity(s);
    refuse(inference > 0 && s.moe.capacity_factor <= 0, "moe.capacity_at_inference",
           "[moe] capacity_at_inference: the experts are dropless in training", "write moe.capacity_factor too");
    if (is_soft(s)) {
      refuse(s.model.norm_place != NormPlace::before, "model.norm_place",
             "[model] norm_place: soft experts stand behind a norm", "leave it out");
      refuse(s.model.residual_scale != 1, "model.residual_scale",
             "[model] residual_scale: blocks with soft experts scale no branch", "leave it out");
    }
    return found;
  }

  std::vector<Space> spaces(const Settings& s) const override {
    return {{.name = patch_space, .positions = s.data.sequence_length, .both_ways = true, .columns = patch_columns(s)}};
  }

  std::vector<Link> links(const Settings& s) const override {
    Settings routed = s;  // the experts that the core routes to
    routed.moe.experts = is_soft(s) ? 0 : s.moe.experts;
    std::vector<Link> links = decoder(s).links(routed);
    links.front() = embedding_link(s);
    for (Link& link : links) {
      if (link.block < 0) {
        continue;
      }
      // The decoder's tokens see half of the others.
      const double inner = static_cast<double>(s.model.heads * head_dim_of(s));
      const double more = 2 * inner * static_cast<double>(s.data.sequence_length);
      link.flops += more;
      link.again_full += more;
      if (is_soft(s) && has_experts(s, link.block)) {
        make_soft(link, s);
      }
    }
    return links;
  }

  std::vector<GroupSpec> groups(const Plan& plan) const override {
    if (is_soft(plan.settings())) {
      require_whole_images(plan);
    }
    return {};
  }

  std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const override {
    const Settings& s = plan.settings();
    if (link.number == 0) {
      return make_embedding(parameters);
    }
    if (link.block >= 0 && is_soft(s) && has_experts(s, link.block)) {
      return make_soft_block(link, parameters, plan);
    }
    std::unique_ptr<Layer> layer = decoder(s).make(link, parameters, plan);
    const double inference = inference_capacity(s);
    if (!link.router.empty() && inference > 0) {
      return std::make_unique<OtherCapacity>(std::move(layer), inference / s.moe.capacity_factor);
    }
    return layer;
  }

 private:
  static const ModelKind& decoder(const Settings& s) { return s.catalogue->get<ModelKind>("decoder"); }
  static bool is_soft(const Settings& s) { return s.moe.experts > 0 && s.moe.router == soft_router; }
  static bool has_experts(const Settings& s, int block) {
    return block >= s.moe.first_dense && (block + 1) % s.moe.every == 0;
  }
  // Soft experts in the place of a block's FFN.
  static void make_soft(Link& link, const Settings& s) {
    const FfnPart& ffn = s.catalogue->get<FfnPart>(s.model.ffn);
    link.flops -= ffn.flops(s, link.block);
    link.again_selective = 0;
    std::vector<ParamSpec>& own = link.parameters.front().params;
    std::erase_if(own, [&](const ParamSpec& spec) { return spec.name.starts_with(block_stem(link.block) + ".mlp."); });
    add_soft_experts(link, s, block_stem(link.block) + ".soft_moe");
  }
};

}  // namespace

std::unique_ptr<Layer> make_soft_block(const Link& link, const Parameters& parameters, const Plan& plan) {
  const Settings& s = plan.settings();
  const std::string stem = block_stem(link.block);
  const AttentionPart& attention = s.catalogue->get<AttentionPart>(s.model.attention);
  return recomputed(std::make_unique<TwoBranches>(
      Branch(stem + ".input_layernorm", branch_site(link, 0),
             attention.make({s, link.block, stem + ".self_attn"}, parameters, plan), parameters, plan),
      Branch(stem + ".post_attention_layernorm", branch_site(link, 1),
             make_soft_experts(stem + ".soft_moe", parameters, plan), parameters, plan)));
}

std::shared_ptr<const ModelKind> make_vit() {
  return std::make_shared<Vit>();
}

}  // namespace orthant::images
