#include "apps/pretrained/upcycle.h"

#include <orthant/random.h>

#include <algorithm>
#include <cmath>

#include "apps/pretrained/new_run.h"
#include "apps/pretrained/opened_model.h"
#include "apps/pretrained/plugin_families.h"
#include "apps/pretrained/sample_logits.h"
#include "core/arch/links.h"
#include "core/checkpoint/checkpoint.h"
#include "core/config/value_text.h"
#include "core/layers/parameter_store.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t compared_tokens = 64;

void check(const UpcycleOptions& o, const Settings& dense) {
  const auto refuse = [](const std::string& why) { throw ConfigError(why); };
  if (dense.moe.experts > 0) {
    refuse(fmt::format("'{}' has {} experts already: give a dense model", o.source.string(), dense.moe.experts));
  }
  if (dense.lora.rank > 0) {
    refuse(
        fmt::format("'{}' has adapters ([lora]) beside its weights: export it, which adds them, and give what that "
                    "writes",
                    o.source.string()));
  }
  if (dense.model.ffn != "mlp") {
    refuse(fmt::format("model.ffn = \"{}\": only the FFN \"mlp\" can be made into experts", dense.model.ffn));
  }
  if (dense.model.positions != Positions::rotary) {
    refuse("model.positions = \"learned\": their number belongs to the data; only rotary positions are taken over");
  }
  if (o.granularity < 1 || o.experts < 2 || o.experts % o.granularity != 0) {
    refuse(fmt::format("--experts {} with --granularity {}: at least two experts, a multiple of the granularity",
                       o.experts, o.granularity));
  }
  if (d_ff_of(dense) % o.granularity != 0) {
    refuse(fmt::format("--granularity {} does not divide the FFN's {} channels", o.granularity, d_ff_of(dense)));
  }
  if (o.top_k < 1 || o.top_k > o.experts / o.granularity) {
    refuse(fmt::format("--top-k {}: a token's {} whole FFNs of {} experts each are more than {} experts; at most {}",
                       o.top_k, o.top_k, o.granularity, o.experts, o.experts / o.granularity));
  }
  if (!(o.noise >= 0 && o.noise <= 1)) {
    refuse(fmt::format("--noise {}: between 0 and 1", o.noise));
  }
}

// What somebody wrote of the dense model, and its experts.
OurKeys keys_of(const UpcycleOptions& o, const Config& dense) {
  OurKeys keys;
  for (const auto& [key, entry] : dense.table("model").entries()) {
    if (entry.origin != "default" && key != "mtp_depth") {
      keys.emplace_back("model." + key, toml_text(entry.value));
    }
  }
  keys.emplace_back("moe.experts", std::to_string(o.experts));
  keys.emplace_back("moe.top_k", std::to_string(o.top_k * o.granularity));
  keys.emplace_back("moe.router", "\"topk\"");
  keys.emplace_back("moe.d_expert", std::to_string(d_ff_of(dense.settings) / o.granularity));
  if (o.granularity > 1) {
    keys.emplace_back("moe.weight_scale", toml_text(Value(static_cast<double>(o.granularity))));
  }
  for (auto& key : plugin_table(dense)) {
    keys.push_back(std::move(key));
  }
  return keys;
}

class Tensors {
 public:
  Tensors(const UpcycleOptions& options, const OpenedModel& source, const Settings& mixture)
      : options_(options), reader_(source.reader()), mixture_(mixture) {}

  std::vector<NewTensor> all() const {
    std::vector<NewTensor> tensors;
    for (const Link& link : links_of(mixture_)) {
      for (const LayerSpecs& layer : link.parameters) {
        for (const ParamSpec& spec : layer.params) {
          // The router stands where the dense block has its FFN.
          const std::string stem = link.router.substr(0, link.router.rfind('.'));
          tensors.push_back({spec.name, spec.global, [this, spec, stem](float* out) {
                               if (spec.expert.has_value()) {
                                 expert(spec, stem, out);
                               } else if (spec.region == Region::router) {
                                 router(spec, out);
                               } else {
                                 read(spec.name, spec.global, 0, 0, out);
                               }
                             }});
        }
      }
    }
    return tensors;
  }

 private:
  // A box of the dense model's tensor, from (row, column) on.
  void read(const std::string& name, const Shape& shape, std::int64_t row, std::int64_t column, float* out) const {
    if (shape.rank() == 1) {
      reader_.read(name, {row}, {shape[0]}, out);
    } else {
      reader_.read(name, {row, column}, {shape[0], shape[1]}, out);
    }
  }

  void expert(const ParamSpec& spec, const std::string& stem, float* out) const {
    const std::int64_t slice = *spec.expert % options_.granularity;
    const bool down = spec.name.ends_with(".w2.weight");
    const bool gate = spec.name.ends_with(".w1.weight") && is_gated(mixture_.model.activation);
    const std::string name = fmt::format("{}.mlp.{}.weight", stem, down ? "down_proj" : gate ? "gate_proj" : "up_proj");
    read(name, spec.global, down ? 0 : slice * spec.global[0], down ? slice * spec.global[1] : 0, out);
    if (options_.noise > 0) {
      disturb(spec, out);
    }
  }

  void disturb(const ParamSpec& spec, float* out) const {
    const std::int64_t elements = spec.global.elements();
    double squares = 0;
    for (std::int64_t i = 0; i < elements; ++i) {
      squares += static_cast<double>(out[i]) * out[i];
    }
    const double size = options_.noise * std::sqrt(squares / static_cast<double>(elements));
    const RandomKey key{mixture_.run.seed, Purpose::weight, site_of(spec.name), 0};
    for (std::int64_t i = 0; i < elements; ++i) {
      out[i] += static_cast<float>(size * normal(key, static_cast<std::uint64_t>(i)));
    }
  }

  // A row for each group, drawn as a new model's would be, the same for each of its experts.
  void router(const ParamSpec& spec, float* out) const {
    const std::int64_t width = spec.global[1];
    const RandomKey key{mixture_.run.seed, Purpose::weight, site_of(spec.name), 0};
    for (std::int64_t e = 0; e < spec.global[0]; ++e) {
      const std::int64_t group = e / options_.granularity;
      for (std::int64_t i = 0; i < width; ++i) {
        out[e * width + i] = spec.std * normal(key, static_cast<std::uint64_t>(group * width + i));
      }
    }
  }

  const UpcycleOptions& options_;
  const CheckpointReader& reader_;
  const Settings& mixture_;
};

double check_logits(const OpenedModel& dense, const Config& mixture, const fs::path& checkpoint) {
  const std::vector<std::int32_t> token = sample_tokens(compared_tokens, mixture.settings.model.vocab_size);
  return compare_logits({"the mixture", sample_logits(mixture, checkpoint, token, 2)},
                        {"the dense model", sample_logits(dense.config(), dense.reader(), token, 2)})
      .difference;
}

}  // namespace

UpcycleResult upcycle(const UpcycleOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  NewRun run(options.output);
  const OpenedModel source(options.source, "upcycle", {}, plugin_keys, plugin_kinds);
  check(options, source.config().settings);
  const Config mixture =
      run.configure(keys_of(options, source.config()),
                    fmt::format("A mixture of {} experts of the dense model {}, written by orthant upcycle.",
                                options.experts, options.source.filename().string()),
                    plugin_keys, plugin_kinds);
  const std::vector<Link> links = links_of(mixture.settings);
  for (const Link* link : routed_links(links)) {
    const std::string ffn = link->router.substr(0, link->router.rfind('.')) + ".mlp.up_proj.weight";
    if (!source.reader().has(ffn)) {
      throw ConfigError(fmt::format("model.kind = \"{}\": it has no \"{}\", which experts could be copies of",
                                    mixture.settings.model.kind, ffn));
    }
  }
  run.copy_tokenizer(source.tokenizer(), source.text_rules());
  run.write_weights(mixture, Tensors(options, source, mixture.settings).all());
  const std::int64_t all = elements_of(mixture.settings), routed = elements_of(mixture.settings, Counted::routed);
  UpcycleResult result{.blocks = routed_in(links_of(mixture.settings)),
                       .parameters = all,
                       .dense_parameters = elements_of(source.config().settings),
                       .active_parameters = all - routed + routed / options.experts * mixture.settings.moe.top_k,
                       .largest_difference = {}};
  if (mixture.settings.model.norm == NormKind::rmsnorm) {
    result.largest_difference =
        check_logits(source, mixture, checkpoint_folder(run.workshop().path() / "checkpoints", 0));
  }
  run.finish(mixture);
  return result;
}

}  // namespace orthant
