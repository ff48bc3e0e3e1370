#include "chain.h"

#include <iterator>
#include <utility>
#include <vector>

#include <orthant/blocks.h>
#include <orthant/catalogue.h>
#include <orthant/part.h>
#include <orthant/settings.h>

#include "blocks.h"
#include "heads.h"
#include "relative_attention.h"
#include "settings.h"

namespace orthant::encoder_decoder {

const Keys<StackKeys>& StackKeys::keys() {
  static const auto all =
      Keys<StackKeys>()
          .add("encoder_layers", &StackKeys::encoder_layers, "t5: blocks of the encoder; 0: as layers, the decoder's.",
               between(0, 1 << 16))
          .after("layers")
          .add("source_length", &StackKeys::source_length,
               "t5: positions of the encoder, in tokens; 0: data.sequence_length, the decoder's.", between(0, 1 << 24))
          .add("relative_buckets", &StackKeys::relative_buckets,
               "t5: distances that have a bias of their own, the far ones shared; even.", between(4, 65536))
          .add("relative_distance", &StackKeys::relative_distance, "t5: distances from here on have one bias.",
               between(8, 1 << 24))
          .add("start_token", &StackKeys::start_token, "t5: the token that a target begins behind.",
               between(0, 1 << 24))
          .add("end_token", &StackKeys::end_token, "t5: the token that ends a source and a target; -1: none does.",
               between(-1, 1 << 24));
  return all;
}

namespace {

void append(std::vector<ParamSpec>& to, std::vector<ParamSpec> specs) {
  std::move(specs.begin(), specs.end(), std::back_inserter(to));
}

// Keys of the core's attention, and what they are where nobody writes them.
const std::vector<std::pair<std::string, Value>>& unread_keys() {
  static const std::vector<std::pair<std::string, Value>> all = {
      {"biases", false},           {"output_bias", false},
      {"qk_norm", false},          {"attention_sinks", false},
      {"attention_softcap", 0.0},  {"rope_theta", 10000.0},
      {"rope_interleaved", false}, {"rope_scaling", std::string("none")}};
  return all;
}

class T5 final : public ModelKind {
 public:
  std::vector<KindKey> keys() const override { return StackKeys::keys().declared(); }

  std::vector<Refusal> refusals(const Settings& s) const override {
    const StackKeys keys = stack_keys(s);
    std::vector<Refusal> found;
    const auto refuse = [&](bool wrong, const std::string& key, const std::string& what, const char* advice) {
      if (wrong) {
        found.push_back({{key}, what, advice});
      }
    };
    const std::string kind = ": kind \"t5\" ";
    refuse(s.model.mtp_depth > 0, "model.mtp_depth", "[model] mtp_depth" + kind + "predicts no tokens further ahead",
           "leave it out");
    refuse(s.model.positions == Positions::learned, "model.positions",
           "[model] positions" + kind + "has relative positions alone", "leave positions out");
    refuse(s.model.sliding_window > 0, "model.sliding_window", "[model] sliding_window" + kind + "has none",
           "leave it out");
    refuse(kv_heads_of(s) != s.model.heads, "model.kv_heads", "[model] kv_heads" + kind + "has keys for every head",
           "leave it out");
    refuse(s.model.attention != "multi_head", "model.attention", "[model] attention" + kind + "brings its own",
           "leave it out");
    refuse(s.model.norm_place != NormPlace::before, "model.norm_place",
           "[model] norm_place" + kind + "has norms before its branches", "leave it out");
    refuse(s.model.residual_scale != 1, "model.residual_scale", "[model] residual_scale" + kind + "scales no branch",
           "leave it out");
    const KeyValues& own = kind_values(s, "model");
    for (const auto& [name, without] : unread_keys()) {
      const auto written = own.find(name);
      const std::string key = "model." + name;
      refuse(written != own.end() && written->second != without, key,
             "[model] " + name + kind + "does not read it: its attention has neither biases nor rotary positions",
             "leave it out");
    }
    refuse(s.run.record_routing > 0 && s.moe.experts > 0, "run.record_routing",
           "[run] record_routing: a model of kind \"t5\" routes tokens of two spaces, and a recording has those of one",
           "leave it out");
    refuse(keys.relative_buckets % 4 != 0, "model.relative_buckets",
           "[model] relative_buckets: half of them are for either direction, half of those for single distances",
           "write a multiple of 4");
    refuse(keys.relative_distance <= keys.relative_buckets / 2, "model.relative_distance",
           "[model] relative_distance: it is not beyond the distances that have a bucket each", "write more");
    const auto routed_in = [&](std::int64_t layers) {
      return layers / s.moe.every > s.moe.first_dense / s.moe.every;  // a multiple of `every` behind the dense ones
    };
    refuse(s.moe.experts > 0 && !routed_in(s.model.layers) && !routed_in(encoder_layers(s)), "moe.every",
           fmt::format("[moe] every: no block of either stack would have experts with every = {} and first_dense = {}",
                       s.moe.every, s.moe.first_dense),
           "write less, or experts = 0");
    refuse(keys.start_token >= s.model.vocab_size && s.model.vocab_size > 0, "model.start_token",
           "[model] start_token: it is no id below vocab_size", "write one");
    refuse(keys.end_token >= s.model.vocab_size && s.model.vocab_size > 0, "model.end_token",
           "[model] end_token: it is no id below vocab_size", "write one, or -1");
    return found;
  }

  std::vector<Space> spaces(const Settings& s) const override {
    return {{.name = "target", .positions = s.data.sequence_length},
            {.name = "source", .positions = source_length(s), .both_ways = true}};
  }

  std::vector<Link> links(const Settings& s) const override {
    const int encoder = static_cast<int>(encoder_layers(s)), decoder = static_cast<int>(s.model.layers);
    std::vector<Link> of_decoder = decoder_kind(s).links(s);
    std::vector<Link> links = {std::move(of_decoder.front())};
    links.front().passes = {source(s, "s")};
    for (int i = 0; i < encoder; ++i) {
      links.push_back(encoder_link(s, i));
    }
    links.push_back(bridge_link(s));
    for (int i = 0; i < decoder; ++i) {
      links.push_back(decoder_link(s, i));
    }
    links.push_back(std::move(of_decoder[static_cast<std::size_t>(decoder) + 1]));
    share(links, s);
    return links;
  }

  std::vector<GroupSpec> groups(const Plan& plan) const override {
    // Scores are made of whole sequences, of some heads (Ulysses) or all.
    for (const AxisId axis : plan.axes_of(Dim::position, Region::attention_core)) {
      const AxisSpec& spec = plan.mesh().axes()[axis];
      throw SettingError(
          "model.kind",
          fmt::format("[model] kind: \"t5\" needs whole sequences in attention, and axis '{}' divides them "
                      "there\nwrite method = \"ulysses\" in [plugins.{}], or leave the axis out",
                      spec.name, spec.name));
    }
    return {};
  }

  std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const override {
    const Settings& s = plan.settings();
    const int encoder = static_cast<int>(encoder_layers(s));
    if (link.block >= 0) {
      return recomputed(link.block >= encoder ? make_decoder_block(link, parameters, plan)
                                              : make_encoder_block(link, parameters, plan));
    }
    if (link.number == 0) {
      return make_source_embedding(decoder_kind(s).make(link, parameters, plan));
    }
    if (!link.objective) {
      return make_bridge(decoder_kind(s).make(link, parameters, plan), parameters, plan);
    }
    return decoder_kind(s).make(link, parameters, plan);
  }

 private:
  static const ModelKind& decoder_kind(const Settings& s) { return s.catalogue->get<ModelKind>("decoder"); }

  static Slot source(const Settings& s, const char* name) {
    return {.name = name, .columns = s.model.d_model, .dtype = compute_type(s), .space = source_space};
  }
  static Slot target(const Settings& s) { return {.name = "x", .columns = s.model.d_model, .dtype = compute_type(s)}; }

  // The last branch of a block: routed experts in every moe.every'th block of a stack.
  static void add_last(Link& link, const Settings& s, int layer, const std::string& stem) {
    append(link.parameters.front().params, norm_parameters(s, stem + ".mlp_norm"));
    const bool routed = s.moe.experts > 0 && layer >= s.moe.first_dense && (layer + 1) % s.moe.every == 0;
    if (routed) {
      add_experts(link, s, stem + ".moe");
      return;
    }
    const FfnPart& ffn = s.catalogue->get<FfnPart>(s.model.ffn);
    append(link.parameters.front().params, ffn.parameters({s, link.block, stem + ".mlp"}));
    link.flops += ffn.flops(s, link.block);
  }

  static Link encoder_link(const Settings& s, int layer) {
    const std::string stem = encoder_stem(layer);
    Link link{.name = "encoder layer " + std::to_string(layer)};
    link.block = layer;
    link.space = source_space;
    link.passes = {source(s, "s")};
    const double share = static_cast<double>(source_length(s)) / static_cast<double>(s.data.sequence_length);
    link.parameters = {{.name = link.name}};
    append(link.parameters.front().params, norm_parameters(s, stem + ".self_norm"));
    append(link.parameters.front().params, projections(s, stem + ".self_attn"));
    link.flops = attention_flops(s, static_cast<double>(source_length(s)));
    add_last(link, s, layer, stem);
    link.flops *= share;  // of one token of the target
    link.touched = share * static_cast<double>(4 * s.model.d_model);
    return link;
  }

  static Link bridge_link(const Settings& s) {
    Link link{.name = "encoder end"};
    link.parameters = {{.name = link.name}};
    link.parameters.front().params = norm_parameters(s, encoder_norm);
    link.touched = static_cast<double>(2 * s.model.d_model);
    link.passes = {source(s, "memory"), target(s)};
    return link;
  }

  static Link decoder_link(const Settings& s, int layer) {
    const std::string stem = decoder_stem(layer);
    Link link{.name = "decoder layer " + std::to_string(layer)};
    link.block = static_cast<int>(encoder_layers(s)) + layer;
    link.passes = {source(s, "memory"), target(s)};
    if (layer + 1 == s.model.layers) {
      link.passes.erase(link.passes.begin());
    }
    link.parameters = {{.name = link.name}};
    append(link.parameters.front().params, norm_parameters(s, stem + ".self_norm"));
    append(link.parameters.front().params, projections(s, stem + ".self_attn"));
    append(link.parameters.front().params, norm_parameters(s, stem + ".cross_norm"));
    append(link.parameters.front().params, projections(s, stem + ".cross_attn"));
    link.flops = attention_flops(s, static_cast<double>(s.data.sequence_length) / 2) +
                 attention_flops(s, static_cast<double>(source_length(s)));
    add_last(link, s, layer, stem);
    link.touched = static_cast<double>(6 * s.model.d_model);
    return link;
  }

  // Parameters that several links use: the tables of tokens and of distances.
  static void share(std::vector<Link>& links, const Settings& s) {
    const int encoder = static_cast<int>(encoder_layers(s)), bridge = encoder + 1;
    const int head = static_cast<int>(links.size()) - 1;
    ParamSpec& tokens = links.front().parameters.front().params.front();
    tokens.layers = {0, bridge};
    if (s.model.tie_embeddings) {
      tokens.layers.push_back(head);
    }
    for (ParamSpec& spec : links.back().parameters.front().params) {
      spec.layers = {};  // the decoder kind's numbers are of its own chain
    }
    std::vector<int> of_encoder, of_decoder;
    for (int number = 1; number < bridge; ++number) {
      of_encoder.push_back(number);
    }
    for (int number = bridge + 1; number < head; ++number) {
      of_decoder.push_back(number);
    }
    const auto add = [&](int number, const char* name, const std::vector<int>& of) {
      links[static_cast<std::size_t>(number)].parameters.push_back(
          {.name = links[static_cast<std::size_t>(number)].name + " distances",
           .params = {relative_table(s, name, of)}});
    };
    add(1, encoder_table, of_encoder);
    add(bridge + 1, decoder_table, of_decoder);
  }
};

}  // namespace

std::shared_ptr<const ModelKind> make_t5() {
  return std::make_shared<T5>();
}

}  // namespace orthant::encoder_decoder
