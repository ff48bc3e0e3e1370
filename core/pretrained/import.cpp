#include "core/pretrained/import.h"

#include <fnmatch.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/base/json.h"
#include "core/checkpoint/checkpoint.h"
#include "core/config/print.h"
#include "core/pretrained/family.h"
#include "core/pretrained/receipt.h"
#include "core/pretrained/source_weights.h"
#include "core/pretrained/workshop.h"
#include "core/run/plugin_state.h"
#include "core/run/remembered_settings.h"
#include "core/run/run_ids.h"
#include "core/run/text_file.h"
#include "core/session/session.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// At most so many of a kind are named in a refusal.
constexpr std::size_t most_named = 8;

ConfigLink::Theirs read_config(const fs::path& source) {
  const fs::path path = source / "config.json";
  if (!fs::exists(path)) {
    throw ConfigError(
        fmt::format("'{}' has no config.json: give the folder of a model as it was published", source.string()));
  }
  const MappedFile file(path);
  const Json json = parse_json(file.bytes(), fmt::format("'{}'", path.string()));
  if (!json.is_object()) {
    throw ConfigError(fmt::format("'{}': a JSON object was expected", path.string()));
  }
  return ConfigLink::Theirs(json);
}

const Family& family_in(const ConfigLink::Theirs& config, const fs::path& source) {
  const auto type = config.find("model_type");
  const std::string name = type != config.end() && type->is_string() ? type->get<std::string>() : "";
  const Family* family = find_family(name);
  if (family == nullptr) {
    std::vector<std::string> known;
    for (const Family& one : families()) {
      known.push_back(one.model_type);
    }
    throw ConfigError(fmt::format("'{}' is of the family \"{}\" (model_type), which is not read here; known are {}",
                                  (source / "config.json").string(), name, fmt::join(known, ", ")));
  }
  if (config.contains("quantization_config")) {
    throw ConfigError(
        fmt::format("'{}' is quantised (quantization_config): weights are read as F32 or BF16; take the model in one "
                    "of them",
                    source.string()));
  }
  return *family;
}

// The tables of the model. A run extends them.
std::string model_toml(const OurKeys& keys, const std::string& source, const Family& family) {
  std::string text = fmt::format(
      "# The model of {} ({}), written by orthant import. A run that goes on from it:\n"
      "#   extends = [\"model.toml\"]\n#   [train]\n#   from = \".\"\n",
      source, family.model_type);
  for (const char* table : {"model", "moe"}) {
    text += fmt::format("\n[{}]\n", table);
    for (const auto& [key, value] : keys) {
      const std::string prefix = std::string(table) + ".";
      if (key.starts_with(prefix)) {
        text += fmt::format("{} = {}\n", key.substr(prefix.size()), value);
      }
    }
  }
  return text;
}

std::string some_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), most_named);
  const std::vector<std::string> first(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown));
  const std::string more = names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "";
  return fmt::format("{}{}", fmt::join(first, ", "), more);
}

bool is_left_out(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& p) { return fnmatch(p.c_str(), name.c_str(), 0) == 0; });
}

// What of the source is which of ours, each element once.
class Matching {
 public:
  Matching(const SourceWeights& weights, const ImportOptions& options) : weights_(weights), options_(options) {}

  Receipt match(const Family& family, const Settings& settings) {
    receipt_.model_type = family.model_type;
    const std::string packed = packed_name(family, settings);
    receipt_.experts = weights_.find(packed) != nullptr ? ExpertForm::packed : ExpertForm::each;
    receipt_.places = tensor_places(family, settings, receipt_.experts);
    for (const TensorPlace& place : receipt_.places) {
      take(place);
    }
    rest(settings);
    refuse();
    return std::move(receipt_);
  }

 private:
  void take(const TensorPlace& place) {
    const FileTensor* tensor = weights_.find(place.theirs);
    if (tensor == nullptr || is_left_out(place.theirs, options_.left_out)) {
      missing_.push_back(place.theirs);
    } else if (tensor->sizes != place.sizes) {
      misfits_.insert(fmt::format("{} is [{}], config.json makes it [{}]", place.theirs, fmt::join(tensor->sizes, ", "),
                                  fmt::join(place.sizes, ", ")));
    } else if (tensor->dtype != DType::f32 && tensor->dtype != DType::bf16) {
      misfits_.insert(fmt::format("{} is {}: F32 and BF16 are read", place.theirs, safetensors_name(tensor->dtype)));
    } else {
      receipt_.dtypes[place.theirs] = tensor->dtype;
      used_[place.theirs] += place.elements();
    }
  }

  // What is left of the source.
  void rest(const Settings& settings) {
    for (const std::string& name : weights_.names()) {
      const auto used = used_.find(name);
      if (used != used_.end()) {
        std::int64_t elements = 1;
        for (const std::int64_t size : weights_.find(name)->sizes) {
          elements *= size;
        }
        if (used->second != elements) {
          misfits_.insert(fmt::format("{} has {} elements, {} of them have a place", name, elements, used->second));
        }
      } else if (is_left_out(name, options_.left_out)) {
        receipt_.left_out.push_back(name);
      } else if (settings.model.tie_embeddings && name == "lm_head.weight" && repeats_embedding(name)) {
        receipt_.repeated.push_back(name);
      } else if (std::none_of(receipt_.places.begin(), receipt_.places.end(),
                              [&](const TensorPlace& place) { return place.theirs == name; })) {
        unused_.push_back(name);
      }
    }
    for (const std::string& pattern : options_.left_out) {
      if (std::none_of(receipt_.left_out.begin(), receipt_.left_out.end(),
                       [&](const std::string& name) { return is_left_out(name, {pattern}); })) {
        misfits_.insert(fmt::format("--leave-out {} matches no tensor that is not needed", pattern));
      }
    }
  }

  bool repeats_embedding(const std::string& name) const {
    const std::string embedding = "model.embed_tokens.weight";
    if (weights_.find(embedding) == nullptr) {
      return false;
    }
    const std::span<const std::byte> a = weights_.bytes(name), b = weights_.bytes(embedding);
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

  void refuse() const {
    std::vector<std::string> lines(misfits_.begin(), misfits_.end());
    if (lines.size() > most_named) {
      lines.resize(most_named);
      lines.push_back(fmt::format("and {} more", misfits_.size() - most_named));
    }
    std::vector<std::string> missing = missing_;
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    if (!missing.empty()) {
      lines.push_back(
          fmt::format("not there, and the model needs {}: {}", missing.size() == 1 ? "it" : "them", some_of(missing)));
    }
    if (!unused_.empty()) {
      lines.push_back(
          fmt::format("there, and the model of config.json has no place for {}: {} (--leave-out PATTERN, "
                      "where that is meant)",
                      unused_.size() == 1 ? "it" : "them", some_of(unused_)));
    }
    if (!lines.empty()) {
      throw ConfigError(fmt::format("the tensors of '{}' are not those of its config.json:\n  {}",
                                    options_.source.string(), fmt::join(lines, "\n  ")));
    }
  }

  const SourceWeights& weights_;
  const ImportOptions& options_;
  Receipt receipt_;
  std::map<std::string, std::int64_t> used_;  // elements
  std::set<std::string> misfits_;
  std::vector<std::string> missing_, unused_;
};

// The checkpoint of step 0, as one rank would save it.
void write_checkpoint(const fs::path& root, const Config& config, const Receipt& receipt, const SourceWeights& weights,
                      const RunIds& ids) {
  CheckpointWriter writer(root, 0, 0, 1);
  for (const TensorPlace& place : receipt.places) {
    writer.add({.name = place.ours,
                .dtype = DType::f32,
                .global = place.our_shape(),
                .offset = std::vector<std::int64_t>(place.shape.size(), 0),
                .size = place.shape},
               [&weights, &place](void* out) {
                 const std::vector<float> values = read_floats(weights, place.theirs, place.begin, place.elements());
                 std::memcpy(out, values.data(), values.size() * sizeof(float));
               });
  }
  const std::string part = writer.finish();
  Session session(config);
  session.plan(0, nullptr, nullptr);
  writer.commit(std::span(&part, 1), {{"step", "0"},
                                      {"tokens", "0"},
                                      {"seed", std::to_string(config.settings.run.seed)},
                                      {"settings", remembered_settings(config)},
                                      {"layout", layout_text(session.plan())},
                                      {"run_id", ids.run},
                                      {"job_id", ids.job}});
}

void check_output(const fs::path& output) {
  if (fs::exists(output) && !(fs::is_directory(output) && fs::is_empty(output))) {
    throw ConfigError(fmt::format("'{}' is there already: give the folder of a run that is not", output.string()));
  }
}

}  // namespace

ImportResult import_model(const ImportOptions& options, const PluginKeys& plugin_keys,
                          const PluginKinds& plugin_kinds) {
  const fs::path output = fs::absolute(options.output / "").lexically_normal().parent_path();
  check_output(output);
  const ConfigLink::Theirs theirs = read_config(options.source);
  const Family& family = family_in(theirs, options.source);
  ConfigReading reading(theirs);
  family.state(reading);
  const OurKeys keys = reading.finish(fmt::format("'{}'", (options.source / "config.json").string()));

  const Disk disk;
  const Workshop workshop(disk, output);
  const std::string name = fs::absolute(options.source / "").lexically_normal().parent_path().filename().string();
  workshop.write_text("model.toml", model_toml(keys, name, family));
  const Config config =
      load_config((workshop.path() / "model.toml").string(),
                  {fmt::format("run.name=\"{}\"", output.filename().string()),
                   fmt::format("run.directory=\"{}\"", output.parent_path().string()), "data.source=\"synthetic\""},
                  plugin_keys, plugin_kinds);
  const SourceWeights weights(options.source);
  Receipt receipt = Matching(weights, options).match(family, config.settings);
  receipt.files = weights.files();

  const RunIds ids{.run = new_id(), .job = new_id()};
  write_checkpoint(workshop.path() / "checkpoints", config, receipt, weights, ids);
  disk.create_folder(workshop.path() / pretrained_folder);
  ImportResult result{.model_type = family.model_type,
                      .tensors = static_cast<std::int64_t>(receipt.dtypes.size()),
                      .packed = receipt.experts == ExpertForm::packed,
                      .left_out = receipt.left_out,
                      .files = {}};
  for (const std::string& file : travelling_files()) {
    if (const auto text = read_text_file(options.source / file)) {
      workshop.write_text((fs::path(pretrained_folder) / file).string(), *text);
      result.files.push_back(file);
    }
  }
  workshop.write_text((fs::path(pretrained_folder) / "receipt.json").string(), receipt.to_json());
  std::string resolved = resolved_toml(config);  // tells where each value stands: there it will be
  const std::string made_in = workshop.path().string();
  for (std::size_t at = resolved.find(made_in); at != std::string::npos; at = resolved.find(made_in, at)) {
    resolved.replace(at, made_in.size(), output.string());
  }
  workshop.write_text("config.resolved.toml", text_of(ids) + resolved);
  disk.sync_folder(workshop.path() / pretrained_folder);
  workshop.become_output();
  for (const TensorPlace& place : receipt.places) {
    result.parameters += place.ours.starts_with("gate/") ? 0 : place.elements();
  }
  return result;
}

}  // namespace orthant
