#include "core/pretrained/import.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/arch/trained.h"
#include "core/base/json.h"
#include "core/pretrained/family.h"
#include "core/pretrained/new_run.h"
#include "core/pretrained/receipt.h"
#include "core/pretrained/source_weights.h"
#include "core/run/text_file.h"

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

std::string some_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), most_named);
  const std::vector<std::string> first(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown));
  const std::string more = names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "";
  return fmt::format("{}{}", fmt::join(first, ", "), more);
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
    if (tensor == nullptr || matches_any(options_.left_out, place.theirs)) {
      missing_.insert(place.theirs);
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
      } else if (matches_any(options_.left_out, name)) {
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
                       [&](const std::string& name) { return matches(pattern, name); })) {
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
    if (!missing_.empty()) {
      lines.push_back(fmt::format("not there, and the model needs {}: {}", missing_.size() == 1 ? "it" : "them",
                                  some_of({missing_.begin(), missing_.end()})));
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
  std::set<std::string> misfits_, missing_;
  std::vector<std::string> unused_;
};

std::vector<NewTensor> tensors_of(const Receipt& receipt, const SourceWeights& weights) {
  std::vector<NewTensor> tensors;
  for (const TensorPlace& place : receipt.places) {
    tensors.push_back(
        {place.ours, place.our_shape(), [&weights, &place](float* out) {
           read_floats(weights, place.theirs, place.begin, {out, static_cast<std::size_t>(place.elements())});
         }});
  }
  return tensors;
}

}  // namespace

ImportResult import_model(const ImportOptions& options, const PluginKeys& plugin_keys,
                          const PluginKinds& plugin_kinds) {
  NewRun run(options.output);
  const ConfigLink::Theirs theirs = read_config(options.source);
  const Family& family = family_in(theirs, options.source);
  ConfigLink reading(theirs);
  family.state(reading);
  const OurKeys keys = reading.read(fmt::format("'{}'", (options.source / "config.json").string()));

  const std::string name = fs::absolute(options.source / "").lexically_normal().parent_path().filename().string();
  const Config config =
      run.configure(keys, fmt::format("The model of {} ({}), written by orthant import.", name, family.model_type),
                    plugin_keys, plugin_kinds);
  const SourceWeights weights(options.source);
  Receipt receipt = Matching(weights, options).match(family, config.settings);
  receipt.files = weights.files();

  run.write_weights(config, tensors_of(receipt, weights));
  const Disk disk;
  disk.create_folder(run.workshop().path() / pretrained_folder);
  ImportResult result{.model_type = family.model_type,
                      .tensors = static_cast<std::int64_t>(receipt.dtypes.size()),
                      .packed = receipt.experts == ExpertForm::packed,
                      .left_out = receipt.left_out,
                      .files = {}};
  for (const std::string& file : travelling_files()) {
    if (const auto text = read_text_file(options.source / file)) {
      run.workshop().write_text((fs::path(pretrained_folder) / file).string(), *text);
      result.files.push_back(file);
    }
  }
  run.workshop().write_text((fs::path(pretrained_folder) / "receipt.json").string(), receipt.to_json());
  disk.sync_folder(run.workshop().path() / pretrained_folder);
  run.finish(config);
  for (const TensorPlace& place : receipt.places) {
    result.parameters += place.ours.starts_with(gate_state_prefix) ? 0 : place.elements();
  }
  return result;
}

}  // namespace orthant
