#include "apps/pretrained/new_run.h"

#include <algorithm>
#include <utility>

#include "apps/pretrained/receipt.h"
#include "core/arch/links.h"
#include "core/base/text_file.h"
#include "core/checkpoint/checkpoint.h"
#include "core/config/print.h"
#include "core/config/value_text.h"
#include "core/run/plugin_state.h"
#include "core/run/remembered_settings.h"
#include "core/run/run_text_rules.h"
#include "core/run/starting_weights.h"
#include "core/session/session.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

std::string model_toml(const OurKeys& keys, const std::string& about) {
  std::string comment = about;
  std::replace_if(
      comment.begin(), comment.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  std::string text = fmt::format(
      "# {} A run that goes on from it:\n#   extends = [\"model.toml\"]\n#   [train]\n#   from = \".\"\n", comment);
  for (const char* table : {"model", "moe", "distil"}) {
    const std::string prefix = std::string(table) + ".";
    const bool any =
        std::any_of(keys.begin(), keys.end(), [&](const auto& key) { return key.first.starts_with(prefix); });
    if (!any && prefix == "distil.") {
      continue;
    }
    text += fmt::format("\n[{}]\n", table);
    for (const auto& [key, value] : keys) {
      if (key.starts_with(prefix)) {
        text += fmt::format("{} = {}\n", key.substr(prefix.size()), value);
      }
    }
  }
  for (const auto& [key, value] : keys) {
    if (key.starts_with("plugins.") && value.empty()) {  // the table of a plugin, whose own keys follow
      text += fmt::format("\n[{}]\n", key);
    } else if (key.starts_with("plugins.")) {
      text += fmt::format("{} = {}\n", key.substr(key.rfind('.') + 1), value);
    }
  }
  return text;
}

// Another kind of model may read other token spaces than the synthetic source has.
bool keys_have_plugin(const OurKeys& keys) {
  return std::any_of(keys.begin(), keys.end(), [](const auto& key) { return key.first.starts_with("plugins."); });
}

fs::path run_folder(const fs::path& output) {
  if (output.empty()) {
    throw ConfigError("the output has no name: give the folder of a run that is not there yet");
  }
  return fs::absolute(output / "").lexically_normal().parent_path();
}

}  // namespace

std::int64_t elements_of(const Settings& settings, Counted what) {
  std::int64_t elements = 0;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      elements += what == Counted::all || spec.expert.has_value() ? spec.global.elements() : 0;
    }
  }
  return elements;
}

void NewRun::copy_tokenizer(const fs::path& tokenizer, const TextRules& rules) const {
  if (const std::string text = to_json(rules); !text.empty()) {
    workshop_->write_text(text_rules_name, text);
  }
  if (tokenizer.empty()) {
    return;
  }
  const fs::path folder = workshop_->path() / pretrained_folder;
  disk_.create_folder(folder);
  for (const std::string& name : published_tokenizer_files()) {
    if (const auto text = read_text_file(tokenizer / name)) {
      workshop_->write_text((fs::path(pretrained_folder) / name).string(), *text);
    }
  }
  disk_.sync_folder(folder);
}

NewRun::NewRun(const fs::path& output) : output_(run_folder(output)), ids_{.run = new_id(), .job = new_id()} {
  if (fs::exists(output_) && !(fs::is_directory(output_) && fs::is_empty(output_))) {
    throw ConfigError(fmt::format("'{}' is there already: give another name, or remove it", output_.string()));
  }
  workshop_ = std::make_unique<Workshop>(disk_, output_);
}

Config NewRun::configure(const OurKeys& keys, const std::string& about, const PluginKeys& plugin_keys,
                         const PluginKinds& plugin_kinds, const std::vector<std::string>& more) {
  workshop_->write_text("model.toml", model_toml(keys, about));
  std::vector<std::string> set = {"run.name=" + toml_text(Value(output_.filename().string())),
                                  "run.directory=" + toml_text(Value(output_.parent_path().string())),
                                  keys_have_plugin(keys) ? "data.source=\"none\"" : "data.source=\"synthetic\""};
  set.insert(set.end(), more.begin(), more.end());
  try {
    return load_config((workshop_->path() / "model.toml").string(), set, plugin_keys, plugin_kinds);
  } catch (const ConfigError& error) {
    throw ConfigError(
        fmt::format("the model that would be written to '{}' cannot be (its settings as keys of ours, and the name "
                    "that was given as --set run.name): {}",
                    output_.string(), error.what()));
  }
}

void NewRun::write_weights(const Config& config, const std::vector<NewTensor>& tensors) const {
  std::uint64_t bytes = 0;
  for (const NewTensor& tensor : tensors) {
    bytes += static_cast<std::uint64_t>(tensor.shape.elements()) * sizeof(float);
  }
  disk_.require_room(workshop_->path(), bytes, "make room, or give -o on another disk");
  CheckpointWriter writer(workshop_->path() / "checkpoints", 0, 0, 1);
  for (const NewTensor& tensor : tensors) {
    SliceMeta slice{.name = tensor.name, .dtype = DType::f32, .global = tensor.shape, .offset = {}, .size = {}};
    for (int i = 0; i < tensor.shape.rank(); ++i) {
      slice.offset.push_back(0);
      slice.size.push_back(tensor.shape[i]);
    }
    writer.add(slice, [&tensor](void* out) { tensor.fill(static_cast<float*>(out)); });
  }
  const std::string part = writer.finish();
  writer.commit(std::span(&part, 1), state(config));
}

std::map<std::string, std::string> NewRun::state(const Config& config) const {
  Session session(config);
  session.plan(0, nullptr, nullptr);
  return {{"step", "0"},
          {"tokens", "0"},
          {"seed", std::to_string(config.settings.run.seed)},
          {"settings", remembered_settings(config)},
          {"layout", layout_text(session.plan())},
          {"run_id", ids_.run},
          {"job_id", ids_.job}};
}

void NewRun::finish(const Config& config) const {
  std::string resolved = resolved_toml(config);  // tells where each value stands: there it will be
  const std::string made_in = workshop_->path().string();
  for (std::size_t at = resolved.find(made_in); at != std::string::npos; at = resolved.find(made_in, at)) {
    resolved.replace(at, made_in.size(), output_.string());
  }
  workshop_->write_text("config.resolved.toml", text_of(ids_) + resolved);
  workshop_->become_output();
}

}  // namespace orthant
