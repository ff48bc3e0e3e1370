#include "apps/pretrained/average.h"

#include <fmt/ranges.h>
#include <fmt/std.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "apps/pretrained/merged_weights.h"
#include "apps/pretrained/new_run.h"
#include "apps/pretrained/opened_model.h"
#include "apps/pretrained/plugin_families.h"
#include "apps/pretrained/run_source.h"
#include "core/arch/links.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/model_folder.h"
#include "core/config/value_text.h"
#include "core/run/remembered_settings.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// The newest `last` of the run, oldest first. A damaged one is no reason to take another: the mean would be of others
// than its user thinks.
std::vector<fs::path> checkpoints_of(const fs::path& run, std::int64_t last) {
  std::vector<fs::path> found;
  std::map<fs::path, std::int64_t> named;
  for (const NamedCheckpoint& checkpoint : checkpoints_in(run / "checkpoints")) {
    if (checkpoint.suffix.empty()) {
      found.push_back(checkpoint.path);
      named.emplace(checkpoint.path, checkpoint.step);
    }
  }
  const auto wanted = static_cast<std::size_t>(last > 0 ? last : 2);
  if (found.size() < wanted) {
    throw ConfigError(fmt::format(
        "'{}' has {} complete checkpoint{}, and {} are to be averaged: run.keep and run.keep_every say how many stay{}",
        run.string(), found.size(), found.size() == 1 ? "" : "s", last > 0 ? std::to_string(last) : "two or more",
        hint_of_published(run)));
  }
  if (last > 0) {
    found.resize(wanted);
  }
  std::reverse(found.begin(), found.end());
  for (const fs::path& path : found) {
    if (const std::int64_t step = CheckpointReader(path).step(); step != named.at(path)) {
      throw ConfigError(
          fmt::format("'{}': its manifest is of step {}: the folder was renamed, and could count twice; "
                      "name the checkpoints that are to be averaged",
                      path.string(), step));
    }
  }
  return found;
}

std::vector<fs::path> checkpoints(const AverageOptions& o) {
  if (o.last < 0 || o.last == 1) {
    throw ConfigError(fmt::format("--last {}: a mean is of two checkpoints or more", o.last));
  }
  if (o.sources.size() == 1 && !is_checkpoint(named_folder(o.sources.front()))) {
    return checkpoints_of(named_folder(o.sources.front()), o.last);
  }
  if (o.last > 0) {
    throw ConfigError("--last is for the checkpoints of one run: give its folder alone, or leave --last out");
  }
  if (o.sources.size() < 2) {
    throw ConfigError("one checkpoint is no mean: give two or more, or the folder of a run");
  }
  std::vector<fs::path> found;
  std::set<fs::path> seen;
  for (const fs::path& source : o.sources) {
    if (!is_checkpoint(named_folder(source))) {
      throw ConfigError(
          fmt::format("'{}' is no complete checkpoint: give checkpoints (RUN/checkpoints/STEP), or the "
                      "folder of one run alone",
                      source.string()));
    }
    found.push_back(named_folder(source));
    if (!seen.insert(fs::canonical(found.back())).second) {
      throw ConfigError(fmt::format("'{}' is given twice", source.string()));
    }
  }
  return found;
}

// The keys of the model, as the run that wrote the checkpoint has them.
OurKeys keys_of(const Config& config) {
  OurKeys keys;
  for (const char* title : {"model", "moe"}) {
    for (const auto& [key, entry] : config.table(title).entries()) {
      if (entry.origin != "default") {
        keys.emplace_back(fmt::format("{}.{}", title, key), toml_text(entry.value));
      }
    }
  }
  for (auto& key : plugin_table(config)) {
    keys.push_back(std::move(key));
  }
  return keys;
}

// What groups of tokens have to fit, and what windows eval takes: the mean is measured as what it is of.
std::vector<std::string> lengths_of(const Settings& settings) {
  return {fmt::format("data.sequence_length={}", settings.data.sequence_length),
          fmt::format("batch.sequences={}", settings.batch.sequences),
          fmt::format("batch.micro_batch={}", settings.batch.micro_batch.written())};
}

class Mean {
 public:
  Mean(const AverageOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds)
      : folders_(checkpoints(options)) {
    for (const fs::path& folder : folders_) {
      models_.push_back(
          std::make_unique<OpenedModel>(folder, "average", std::vector<std::string>(), plugin_keys, plugin_kinds));
      require_same_model(*models_.back());
    }
    if (config().settings.model.positions == Positions::learned) {
      throw ConfigError(
          "model.positions = \"learned\": their number belongs to the data, which a run of weights alone has not");
    }
  }

  const std::vector<fs::path>& folders() const { return folders_; }
  const Config& config() const { return models_.front()->config(); }
  const fs::path& tokenizer() const { return models_.front()->tokenizer(); }
  const TextRules& text_rules() const { return models_.front()->text_rules(); }

  std::vector<NewTensor> tensors(const Settings& settings) const {
    std::vector<NewTensor> all;
    for (const LayerSpecs& layer : parameter_table(settings)) {
      for (const ParamSpec& spec : layer.params) {
        all.push_back(tensor(spec.name, spec.global));
      }
    }
    for (const GateStateSpec& state : gate_state_table(settings)) {
      all.push_back(tensor(state.name, {settings.moe.columns()}));
    }
    return all;
  }

 private:
  void require_same_model(const OpenedModel& other) const {
    std::vector<std::string> different;
    for (const std::string& line : changed_settings(config(), remembered_settings(other.config()))) {
      const bool of_model = line.starts_with("model.") || line.starts_with("moe.");
      if (of_model && !only_trains(line.substr(0, line.find(' ')))) {
        different.push_back(line);
      }
    }
    if (!different.empty()) {
      throw ConfigError(fmt::format("'{}' is of another model than '{}', and their mean would be of neither:\n  {}",
                                    other.checkpoint().string(), models_.front()->checkpoint().string(),
                                    fmt::join(different, "\n  ")));
    }
  }

  NewTensor tensor(const std::string& name, const Shape& shape) const {
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < shape.rank(); ++i) {
      sizes.push_back(shape[i]);
    }
    return {name, shape, [this, name, sizes, elements = static_cast<std::size_t>(shape.elements())](float* out) {
              std::vector<double> sum(elements);
              for (const auto& model : models_) {
                read_merged(model->reader(), model->config().settings, name, sizes, out);
                std::transform(sum.begin(), sum.end(), out, sum.begin(), [](double s, float w) { return s + w; });
              }
              const auto number = static_cast<double>(models_.size());
              std::transform(sum.begin(), sum.end(), out, [&](double s) { return static_cast<float>(s / number); });
            }};
  }

  std::vector<fs::path> folders_;
  std::vector<std::unique_ptr<OpenedModel>> models_;
};

}  // namespace

AverageResult average_checkpoints(const AverageOptions& options, const PluginKeys& plugin_keys,
                                  const PluginKinds& plugin_kinds) {
  NewRun run(options.output);
  const Mean mean(options, plugin_keys, plugin_kinds);
  const Config config = run.configure(
      keys_of(mean.config()),
      fmt::format("The mean of {} checkpoints, written by orthant checkpoint average.", mean.folders().size()),
      plugin_keys, plugin_kinds, lengths_of(mean.config().settings));
  run.copy_tokenizer(mean.tokenizer(), mean.text_rules());
  run.write_weights(config, mean.tensors(config.settings));
  run.finish(config);
  return {mean.folders(), elements_of(config.settings)};
}

}  // namespace orthant
