#include "coatnet.h"

#include <iterator>
#include <utility>
#include <vector>

#include <orthant/catalogue.h>

#include "branch.h"
#include "grid_attention.h"
#include "mbconv.h"
#include "settings.h"
#include "vit.h"

namespace orthant::images {
namespace {

ConvKeys conv_keys(const Settings& s) {
  return read_keys<ConvKeys>(kind_values(s, "model"));
}
std::int64_t grid_of(const Settings& s) {
  return image_keys(s).image_size / patch_keys(s).patch_size;
}

// A block of convolutions: its place and its shape.
struct ConvBlock {
  std::string name, stem;
  ConvShape shape;
};

ConvShape stem_shape(const Settings& s) {
  return {.grid = grid_of(s),
          .side = patch_keys(s).patch_size,
          .stride = 2,
          .from = image_keys(s).image_channels,
          .to = conv_keys(s).conv_widths.front()};
}

std::vector<ConvBlock> conv_blocks(const Settings& s) {
  const ConvKeys keys = conv_keys(s);
  std::vector<ConvBlock> blocks;
  std::int64_t side = patch_keys(s).patch_size / 2, width = keys.conv_widths.front();
  for (std::size_t stage = 0; stage < keys.conv_blocks.size(); ++stage) {
    const bool last = stage + 1 == keys.conv_blocks.size();
    const std::int64_t to = last ? s.model.d_model : keys.conv_widths[stage + 1];
    for (std::int64_t block = 0; block < keys.conv_blocks[stage]; ++block) {
      const std::int64_t stride = block == 0 ? 2 : 1;
      blocks.push_back({fmt::format("stage {} block {}", stage, block),
                        fmt::format("model.stages.{}.{}", stage, block),
                        {.grid = grid_of(s), .side = side, .stride = stride, .from = width, .to = to}});
      side /= stride;
      width = to;
    }
  }
  return blocks;
}

class CoAtNet final : public ModelKind {
 public:
  std::vector<KindKey> keys() const override {
    std::vector<KindKey> keys = PatchKeys::keys().declared();
    std::ranges::move(ConvKeys::keys().declared(), std::back_inserter(keys));
    return keys;
  }

  std::vector<Refusal> refusals(const Settings& s) const override {
    std::vector<Refusal> found = wrong_sizes(s);
    const auto refuse = [&](bool wrong, const char* key, const std::string& what, const std::string& advice) {
      if (wrong) {
        found.push_back({{key}, what, advice});
      }
    };
    const ConvKeys keys = conv_keys(s);
    const std::int64_t side = std::int64_t{2} << keys.conv_blocks.size();
    refuse(keys.conv_blocks.empty() || keys.conv_blocks.size() > 9, "model.conv_blocks",
           "[model] conv_blocks: expected one to nine stages", "write conv_blocks = [2, 2], say");
    refuse(
        keys.conv_widths.size() != keys.conv_blocks.size(), "model.conv_widths",
        fmt::format("[model] conv_widths: {} numbers for {} stages", keys.conv_widths.size(), keys.conv_blocks.size()),
        "write the stem's width, and that of each stage but the last");
    refuse(
        patch_keys(s).patch_size != side, "model.patch_size",
        fmt::format("[model] patch_size: the stem and {} stages halve a patch to one pixel", keys.conv_blocks.size()),
        fmt::format("write patch_size = {}", side));
    refuse(has_class_token(s), "model.pool", "[model] pool: kind \"coatnet\" has no class token",
           "write pool = \"mean\"");
    refuse(s.model.tie_embeddings, "model.tie_embeddings", "[model] tie_embeddings: kind \"coatnet\" has no tokens",
           "leave it out");
    refuse(s.model.mtp_depth > 0, "model.mtp_depth", "[model] mtp_depth: kind \"coatnet\" predicts no next token",
           "leave it out");
    refuse(s.model.attention != "multi_head", "model.attention", "[model] attention: kind \"coatnet\" brings its own",
           "leave it out");
    refuse(s.model.norm_place != NormPlace::before, "model.norm_place",
           "[model] norm_place: kind \"coatnet\" has norms before its branches", "leave it out");
    refuse(s.model.residual_scale != 1, "model.residual_scale",
           "[model] residual_scale: kind \"coatnet\" scales no branch", "leave it out");
    return found;
  }

  std::vector<Space> spaces(const Settings& s) const override {
    return {{.name = patch_space, .positions = s.data.sequence_length, .both_ways = true, .columns = patch_columns(s)}};
  }

  std::vector<Link> links(const Settings& s) const override {
    std::vector<Link> links = {stem_link(s, stem_shape(s))};
    int block = 0;
    for (const ConvBlock& conv : conv_blocks(s)) {
      links.push_back(mbconv_link(s, conv.shape, conv.name, conv.stem));
      links.back().block = block++;
    }
    for (int layer = 0; layer < s.model.layers; ++layer) {
      links.push_back(attention_link(s, layer, block++));
    }
    links.push_back(decoder(s).links(s).back());
    for (ParamSpec& spec : links.back().parameters.front().params) {
      spec.layers = {};  // the decoder kind's numbers are of its own chain
    }
    return links;
  }

  std::vector<GroupSpec> groups(const Plan& plan) const override {
    for (const AxisId axis : plan.axes_of(Dim::position, Region::norm)) {
      const std::string& name = plan.mesh().axes()[axis].name;
      throw ConfigError(
          fmt::format("model.kind: convolutions of \"coatnet\" need whole images, and axis '{}' divides "
                      "them\nleave the axis, or its sequence_parallel, out",
                      name));
    }
    return {};
  }

  std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const override {
    const Settings& s = plan.settings();
    const std::vector<ConvBlock> convs = conv_blocks(s);
    if (link.number == 0) {
      return make_stem(stem_shape(s), parameters);
    }
    if (link.block < 0) {
      return decoder(s).make(link, parameters, plan);
    }
    if (link.block < static_cast<int>(convs.size())) {
      const ConvBlock& conv = convs[static_cast<std::size_t>(link.block)];
      return make_mbconv(conv.shape, conv.stem, parameters, plan);
    }
    const std::string stem = block_stem(link.block - static_cast<int>(convs.size()));
    std::unique_ptr<PartLayer> last =
        link.router.empty()
            ? s.catalogue->get<FfnPart>(s.model.ffn).make({s, link.block, stem + ".mlp"}, parameters, plan)
            : make_experts(link, parameters, plan);
    return recomputed(std::make_unique<TwoBranches>(
        Branch(stem + ".input_layernorm", branch_site(link, 0),
               make_grid_attention(grid_of(s), stem + ".self_attn", parameters, plan), parameters, plan),
        Branch(stem + ".post_attention_layernorm", branch_site(link, 1), std::move(last), parameters, plan)));
  }

 private:
  static const ModelKind& decoder(const Settings& s) { return s.catalogue->get<ModelKind>("decoder"); }

  static Link attention_link(const Settings& s, int layer, int block) {
    const std::string stem = block_stem(layer);
    Link link{.name = "layer " + std::to_string(layer)};
    link.block = block;
    link.parameters = {{.name = link.name, .params = {}}};
    const auto append = [&](std::vector<ParamSpec> specs) {
      std::ranges::move(specs, std::back_inserter(link.parameters.front().params));
    };
    append(norm_parameters(s, stem + ".input_layernorm"));
    add_grid_attention(link, s, grid_of(s), stem + ".self_attn");
    append(norm_parameters(s, stem + ".post_attention_layernorm"));
    link.touched = static_cast<double>(4 * s.model.d_model);
    link.passes = {{.name = "x", .columns = s.model.d_model, .dtype = compute_type(s)}};
    if (s.moe.experts > 0 && layer >= s.moe.first_dense && (layer + 1) % s.moe.every == 0) {
      add_experts(link, s, stem + ".block_sparse_moe");
      return link;
    }
    const FfnPart& ffn = s.catalogue->get<FfnPart>(s.model.ffn);
    append(ffn.parameters({s, block, stem + ".mlp"}));
    link.flops += ffn.flops(s, block);
    return link;
  }
};

}  // namespace

std::shared_ptr<const ModelKind> make_coatnet() {
  return std::make_shared<CoAtNet>();
}

}  // namespace orthant::images
