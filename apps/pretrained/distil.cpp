#include "apps/pretrained/distil.h"

#include <orthant/random.h>

#include <algorithm>
#include <optional>

#include "apps/pretrained/merged_weights.h"
#include "apps/pretrained/new_run.h"
#include "apps/pretrained/opened_model.h"
#include "core/arch/decoder.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/model_folder.h"
#include "core/config/value_text.h"
#include "core/layers/parameter_store.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Of all experts that a token meets in a block.
std::int64_t active_channels(const Settings& s) {
  if (s.moe.experts == 0) {
    return d_ff_of(s);
  }
  return s.moe.top_k * d_expert_of(s) + (s.moe.shared_experts > 0 ? d_shared_of(s) : 0);
}

void check(const DistilOptions& o, const Settings& teacher) {
  const auto refuse = [](const std::string& why) { throw ConfigError(why); };
  if (teacher.model.ffn != "mlp") {
    refuse(fmt::format("model.ffn = \"{}\" of the teacher: only the FFN \"mlp\" can be taken over", teacher.model.ffn));
  }
  if (teacher.model.positions != Positions::rotary) {
    refuse("model.positions = \"learned\": their number belongs to the data; only rotary positions are taken over");
  }
  if (o.layers < 0 || o.layers > teacher.model.layers) {
    refuse(fmt::format("--layers {}: at least 1 block, and at most the teacher's {}", o.layers, teacher.model.layers));
  }
  if (o.layers > 0 && o.layers != teacher.model.layers && teacher.model.full_attention_every > 0) {
    refuse(
        fmt::format("--layers {}: model.full_attention_every = {} of the teacher gives its blocks windows by their "
                    "number, which blocks taken from it would not keep; leave out --layers, or write its {}",
                    o.layers, teacher.model.full_attention_every, teacher.model.layers));
  }
  if (teacher.moe.experts > 0 && teacher.moe.expert_bias) {
    refuse("moe.expert_bias = true of the teacher: the channels of a student have no biases that could take it over");
  }
  if (o.d_ffn < 0 || o.d_ffn > (std::int64_t{1} << 24)) {
    refuse(fmt::format("--d-ffn {}: at least 1 channel, and at most 2^24", o.d_ffn));
  }
}

OurKeys keys_of(const DistilOptions& o, const OpenedModel& teacher) {
  const Settings& theirs = teacher.config().settings;
  OurKeys keys;
  for (const auto& [key, entry] : teacher.config().table("model").entries()) {
    if (entry.origin != "default" && key != "layers" && key != "d_ff" && key != "mtp_depth") {
      keys.emplace_back("model." + key, toml_text(entry.value));
    }
  }
  keys.emplace_back("model.layers", std::to_string(o.layers > 0 ? o.layers : theirs.model.layers));
  keys.emplace_back("model.d_ff", std::to_string(o.d_ffn > 0 ? o.d_ffn : active_channels(theirs)));
  keys.emplace_back("distil.teacher", toml_text(Value(fs::absolute(teacher.checkpoint()).string())));
  keys.emplace_back("distil.weight", "0.9");  // better than 0.5: bench/results/distil.md
  return keys;
}

// Some channels of a teacher's block: gate and up [channels, d], down [d, channels].
struct Channels {
  std::string gate, up, down;  // names of parameters; gate empty where the activation has none
  std::int64_t channels = 0;
  float scale = 1;  // of what they put out
};

std::vector<Channels> channels_of(const Settings& teacher, int block) {
  const bool gated = is_gated(teacher.model.activation);
  const auto of_ffn = [&](const std::string& stem, std::int64_t channels, float scale) {
    return Channels{gated ? stem + ".gate_proj.weight" : "", stem + ".up_proj.weight", stem + ".down_proj.weight",
                    channels, scale};
  };
  if (!block_has_experts(teacher, block)) {
    return {of_ffn(block_stem(block) + ".mlp", d_ff_of(teacher), 1)};
  }
  const MoeSettings& moe = teacher.moe;
  const std::string stem = block_stem(block) + ".block_sparse_moe";
  std::vector<Channels> all;
  if (moe.shared_experts > 0) {
    all.push_back(of_ffn(stem + ".shared_experts", d_shared_of(teacher), moe.shared_gate ? 0.5f : 1));
  }
  const float mean_weight = static_cast<float>(moe.weight_scale / static_cast<double>(moe.top_k));
  for (std::int64_t e = 0; e < moe.experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}", stem, e);
    all.push_back({gated ? expert + ".w1.weight" : "", expert + (gated ? ".w3.weight" : ".w1.weight"),
                   expert + ".w2.weight", d_expert_of(teacher), mean_weight});
  }
  return all;
}

class StudentTensors {
 public:
  StudentTensors(const DistilOptions& options, const OpenedModel& teacher, const Settings& student)
      : options_(options), reader_(teacher.reader()), teacher_(teacher.config().settings), student_(student) {}

  std::vector<NewTensor> all() const {
    std::vector<NewTensor> tensors;
    for (const Link& link : links_of(student_)) {
      for (const LayerSpecs& layer : link.parameters) {
        for (const ParamSpec& spec : layer.params) {
          tensors.push_back(
              {spec.name, spec.global, [this, spec, block = link.block](float* out) { fill(spec, block, out); }});
        }
      }
    }
    return tensors;
  }

 private:
  // The blocks that are taken lie evenly, the last one of each run.
  int source_of(int block) const {
    return static_cast<int>((block + 1) * teacher_.model.layers / student_.model.layers - 1);
  }

  void read(const std::string& name, const Shape& shape, float* out) const {
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < shape.rank(); ++i) {
      sizes.push_back(shape[i]);
    }
    read_merged(reader_, teacher_, name, sizes, out);
  }

  void fill(const ParamSpec& spec, int block, float* out) const {
    const bool in_block = block >= 0 && block < student_.model.layers;
    const std::string stem = in_block ? block_stem(block) : "";
    if (in_block && spec.name.starts_with(stem + ".mlp.")) {
      ffn(spec, source_of(block), out);
    } else {
      read(in_block ? block_stem(source_of(block)) + spec.name.substr(stem.size()) : spec.name, spec.global, out);
    }
  }

  // Channels that the teacher does not have enough of are drawn as a new model's would be.
  void ffn(const ParamSpec& spec, int block, float* out) const {
    const RandomKey key{student_.run.seed, Purpose::weight, site_of(spec.name), 0};
    for (std::int64_t i = 0; i < spec.global.elements(); ++i) {
      out[i] = spec.std * normal(key, static_cast<std::uint64_t>(i));
    }
    if (options_.new_ffn) {
      return;
    }
    const bool down = spec.name.ends_with(".down_proj.weight"), gate = spec.name.ends_with(".gate_proj.weight");
    const std::int64_t wanted = spec.global[down ? 1 : 0], width = spec.global[down ? 0 : 1];  // N, d
    std::int64_t have = 0;
    for (const Channels& from : channels_of(teacher_, block)) {
      const std::int64_t taken = std::min(from.channels, wanted - have);
      if (taken == 0) {
        return;
      }
      const Shape shape = down ? Shape{width, from.channels} : Shape{from.channels, width};
      std::vector<float> matrix(static_cast<std::size_t>(shape.elements()));
      read(down ? from.down : gate ? from.gate : from.up, shape, matrix.data());
      if (!down) {
        std::copy_n(matrix.begin(), taken * width, out + have * width);
      }
      for (std::int64_t row = 0; down && row < width; ++row) {
        std::transform(matrix.begin() + row * from.channels, matrix.begin() + row * from.channels + taken,
                       out + row * wanted + have, [&](float w) { return from.scale * w; });
      }
      have += taken;
    }
  }

  const DistilOptions& options_;
  const CheckpointReader& reader_;
  const Settings& teacher_;
  const Settings& student_;
};

}  // namespace

DistilResult distil(const DistilOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  NewRun run(options.output);
  if (is_published(options.teacher)) {
    throw ConfigError(
        fmt::format("'{}' is a published model, and a teacher must be there as long as the student "
                    "learns: make a run of it first, by orthant import",
                    options.teacher.string()));
  }
  const OpenedModel teacher(options.teacher, "distil", {}, plugin_keys, plugin_kinds);
  require_decoder(teacher.config().settings, "distil");
  check(options, teacher.config().settings);
  const Config student = run.configure(
      keys_of(options, teacher),
      fmt::format("A dense student of {}, written by orthant distil.", options.teacher.filename().string()),
      plugin_keys, plugin_kinds);
  run.copy_tokenizer(teacher.tokenizer(), teacher.text_rules());
  run.write_weights(student, StudentTensors(options, teacher, student.settings).all());
  run.finish(student);
  return {.layers = student.settings.model.layers,
          .d_ffn = d_ff_of(student.settings),
          .parameters = elements_of(student.settings),
          .teacher_parameters = elements_of(teacher.config().settings),
          .checkpoint = teacher.checkpoint()};
}

}  // namespace orthant
