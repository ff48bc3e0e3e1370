#include "apps/pretrained/import.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "apps/pretrained/family.h"
#include "apps/pretrained/grown_vocabulary.h"
#include "apps/pretrained/import_files.h"
#include "apps/pretrained/new_run.h"
#include "apps/pretrained/peer_logits.h"
#include "apps/pretrained/peft_adapter.h"
#include "apps/pretrained/receipt.h"
#include "apps/pretrained/sample_logits.h"
#include "apps/pretrained/source_floats.h"
#include "core/arch/trained.h"
#include "core/base/json.h"
#include "core/checkpoint/checkpoint.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// At most so many of a kind are named in a refusal.
constexpr std::size_t most_named = 8;

ConfigLink::Theirs read_config(const fs::path& source) {
  const fs::path path = source / "config.json";
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw ConfigError(fmt::format("'{}' {}", source.string(),
                                  !fs::exists(source, error)
                                      ? "is not there: give the folder of a model as it was published. Nothing is "
                                        "loaded from the network"
                                  : !fs::is_directory(source, error) ? "is a file: give the folder that it lies in"
                                  : fs::exists(source / "config.resolved.toml", error)
                                      ? "is a run already: [train] from takes it as it is"
                                      : "has no config.json: give the folder of a model as it was published"));
  }
  const MappedFile file(path);
  const Json json = parse_json(file.bytes(), fmt::format("'{}'", path.string()));
  if (!json.is_object()) {
    throw ConfigError(fmt::format("'{}': a JSON object was expected", path.string()));
  }
  return ConfigLink::Theirs(json);
}

void drop_null(ConfigLink::Theirs& config, const char* key) {
  if (const auto found = config.find(key); found != config.end() && found->is_null()) {
    config.erase(found);
  }
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
  Matching(const SourceWeights& weights, const SourceFloats& floats, const ImportOptions& options)
      : weights_(weights), floats_(floats), options_(options) {}

  Receipt match(const Family& family, const Settings& settings) {
    receipt_.model_type = family.model_type;
    const std::string packed = packed_name(family, settings);
    receipt_.experts = weights_.find(packed) != nullptr                                  ? ExpertForm::packed
                       : !packed.empty() && weights_.find(packed + "_blocks") != nullptr ? ExpertForm::mxfp4
                                                                                         : ExpertForm::each;
    receipt_.places = tensor_places(family, settings, receipt_.experts);
    for (const auto& [of, copy] : mtp_copies(family, settings)) {
      copies_[copy] = of;
    }
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
    } else if (const std::string why = floats_.unreadable(*tensor); !why.empty()) {
      misfits_.insert(why);
    } else if (tensor->dtype == DType::f8_e4m3 && !place.in_order()) {
      misfits_.insert(fmt::format("{} is F8_E4M3 and turned, gate and up in turns: which scale is whose is not known",
                                  place.theirs));
    } else {
      receipt_.dtypes.insert_or_assign(place.theirs, tensor->dtype);
      used_[place.theirs] += place.elements();
    }
    if (const std::string scales = tensor != nullptr ? floats_.scales_of(*tensor) : "";
        weights_.find(scales) != nullptr) {
      receipt_.scales[place.theirs] = scales;
      used_[scales] = elements_of(*weights_.find(scales));
    }
    if (const std::string rounding = tensor != nullptr ? floats_.activation_scale_of(*tensor) : "";
        weights_.find(rounding) != nullptr && used_.emplace(rounding, elements_of(*weights_.find(rounding))).second) {
      receipt_.left_out.push_back(rounding);
    }
  }

  // What is left of the source.
  void rest(const Settings& settings) {
    for (const std::string& name : weights_.names()) {
      const auto used = used_.find(name);
      if (used != used_.end()) {
        const std::int64_t elements = elements_of(*weights_.find(name));
        if (used->second != elements) {
          misfits_.insert(fmt::format("{} has {} elements, {} of them have a place", name, elements, used->second));
        }
      } else if (matches_any(options_.left_out, name)) {
        receipt_.left_out.push_back(name);
      } else if (settings.model.tie_embeddings && name == "lm_head.weight" &&
                 repeats(name, "model.embed_tokens.weight")) {
        receipt_.repeated.push_back(name);
      } else if (const auto copy = copies_.find(name); copy != copies_.end()) {
        if (repeats(name, copy->second)) {
          receipt_.repeated.push_back(name);
        } else {
          misfits_.insert(
              fmt::format("{} is not {}: the blocks of multi-token prediction have no other here", name, copy->second));
        }
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

  // U8: two of 4 bits each.
  static std::int64_t elements_of(const FileTensor& tensor) {
    return std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), std::int64_t{tensor.dtype == DType::u8 ? 2 : 1},
                           std::multiplies<>());
  }

  bool repeats(const std::string& name, const std::string& other) const {
    if (weights_.find(other) == nullptr) {
      return false;
    }
    const std::span<const std::byte> a = weights_.bytes(name), b = weights_.bytes(other);
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
  const SourceFloats& floats_;
  const ImportOptions& options_;
  Receipt receipt_;
  std::map<std::string, std::int64_t> used_;   // elements
  std::map<std::string, std::string> copies_;  // of which tensor of theirs
  std::set<std::string> misfits_, missing_;
  std::vector<std::string> unused_;
};

// The elements of a place, by what the source and an adapter have. adapter: null for none.
void read_place(const TensorPlace& place, const SourceFloats& floats, const PeftAdapter* adapter, float* out) {
  const std::span<float> all(out, static_cast<std::size_t>(place.elements()));
  if (place.in_order()) {
    floats.read(place.theirs, place.begin, all);
  } else if (place.column_step == 1) {  // whole rows of theirs, and only ours are read
    const std::int64_t columns = place.shape[1];
    for (std::int64_t i = 0; i < place.elements(); i += columns) {
      floats.read(place.theirs, place.begin + place.at(i), {out + i, static_cast<std::size_t>(columns)});
    }
  } else {
    std::vector<float> spanned(static_cast<std::size_t>(place.span()));
    floats.read(place.theirs, place.begin, spanned);
    for (std::int64_t i = 0; i < place.elements(); ++i) {
      out[i] = spanned[static_cast<std::size_t>(place.at(i))];
    }
  }
  if (adapter != nullptr) {
    adapter->add(place, all);
  }
}

// vocabulary: of the new model.
std::vector<NewTensor> tensors_of(const Receipt& receipt, const SourceFloats& floats, const PeftAdapter* adapter,
                                  std::int64_t vocabulary) {
  std::vector<NewTensor> tensors;
  for (const TensorPlace& place : receipt.places) {
    if (has_row_for_each_token(place.ours)) {
      const std::int64_t columns = place.shape.size() > 1 ? place.shape[1] : 1;
      tensors.push_back({place.ours, place.shape.size() > 1 ? Shape{vocabulary, columns} : Shape{vocabulary},
                         [&floats, &place, adapter, vocabulary, columns](float* out) {
                           read_place(place, floats, adapter, out);
                           fill_new_rows(out, place.shape[0], vocabulary, columns);
                         }});
      continue;
    }
    tensors.push_back({place.ours, place.our_shape(),
                       [&floats, &place, adapter](float* out) { read_place(place, floats, adapter, out); }});
  }
  return tensors;
}

// Errors: Error where the models are not the same one.
LogitsCheck check_logits(const ImportOptions& options, const Config& config, const fs::path& checkpoint) {
  const std::vector<std::int32_t> token = sample_tokens(64, config.settings.model.vocab_size);
  const Logits theirs = peer_logits(options.check_by, options.source, token);
  const LogitsDifference found = compare_logits(
      {fmt::format("the import of '{}'", options.source.string()), sample_logits(config, checkpoint, token, 1)},
      theirs);
  const LogitsCheck check{theirs.by, static_cast<std::int64_t>(token.size()), found.largest, found.difference};
  require(check.difference <= most_logits_differ,
          "the logits of '{}' differ from those of {} by {:.3g} of the largest, {:.0e} is allowed: it is not the same "
          "model here, and nothing was written",
          options.source.string(), check.by, check.difference, most_logits_differ);
  return check;
}

// Of multi-token prediction.
std::int64_t depths_in(const ConfigLink::Theirs& config, const Family& family, const std::string& where) {
  if (family.mtp.empty()) {
    throw ConfigError(
        fmt::format("--mtp: models of the family \"{}\" have no blocks of multi-token prediction that are "
                    "read here: leave --mtp out",
                    family.model_type));
  }
  const auto found = config.find(family.mtp);
  if (found == config.end() || !found->is_number_integer() || found->get<std::int64_t>() < 1) {
    throw ConfigError(
        fmt::format("--mtp: {} says {} = {}: there is no block of multi-token prediction; leave --mtp out", where,
                    family.mtp, found == config.end() ? "nothing" : found->dump()));
  }
  return found->get<std::int64_t>();
}

}  // namespace

ImportResult import_model(const ImportOptions& options, const PluginKeys& plugin_keys,
                          const PluginKinds& plugin_kinds) {
  NewRun run(options.output, options.elsewhere);
  ConfigLink::Theirs theirs = read_config(options.source);
  const Family& family = family_in(theirs, options.source);
  const std::string where = fmt::format("'{}'", (options.source / "config.json").string());
  drop_null(theirs, "quantization_config");
  const bool quantised = theirs.contains("quantization_config");
  const bool in_mxfp4 = family.names == MoeNames::gpt_oss && says_mxfp4(theirs, where);
  const std::optional<ScaleBlocks> blocks = in_mxfp4 ? std::nullopt : scale_blocks_in(theirs, where);
  theirs.erase("quantization_config");
  if (quantised && !options.check_by.empty()) {
    throw ConfigError(fmt::format(
        "{} is quantised: transformers {}, and has other logits. Leave out --check", where,
        in_mxfp4 ? "computes a model in MXFP4 with kernels of its own" : "rounds activations of such a model too"));
  }
  ConfigLink reading(theirs);
  family.state(reading);
  OurKeys keys = reading.read(where, options.passed_over);
  if (options.with_mtp) {
    keys.emplace_back("model.mtp_depth", std::to_string(depths_in(theirs, family, where)));
  }

  const std::int64_t tokens = grow_vocabulary(keys, options.vocabulary, where);
  if (options.vocabulary > 0 && !options.check_by.empty()) {
    throw ConfigError("--vocabulary: the model has more logits than transformers finds. Leave out --check");
  }

  if (!options.adapter.empty() && !options.check_by.empty()) {
    throw ConfigError("--adapter: transformers finds the logits of the model without it. Leave out --check");
  }

  const std::vector<TravellingFile> travelling = read_travelling_files(options.source);
  const std::string name = fs::absolute(options.source / "").lexically_normal().parent_path().filename().string();
  const Config config =
      run.configure(keys, fmt::format("The model of {} ({}), written by orthant import.", name, family.model_type),
                    plugin_keys, plugin_kinds);
  std::vector<std::string> notes = notes_on_ends(options.source, config.settings.model.vocab_size);
  const SourceWeights weights(options.source);
  const SourceFloats floats(weights, blocks, in_mxfp4);
  Settings published = config.settings;
  published.model.vocab_size = tokens;
  Receipt receipt = Matching(weights, floats, options).match(family, published);
  receipt.files = weights.files();
  std::optional<PeftAdapter> adapter;
  if (!options.adapter.empty()) {
    adapter.emplace(options.adapter);
    adapter->check(receipt.places);
    receipt.adapter = adapter->files();
  }
  for (const std::string& key : options.passed_over) {
    receipt.passed_over[key] = theirs[key].dump();
  }

  run.write_weights(
      config, tensors_of(receipt, floats, adapter.has_value() ? &*adapter : nullptr, config.settings.model.vocab_size));
  if (!options.check_by.empty()) {
    receipt.check = check_logits(options, config, checkpoint_folder(run.workshop().path() / "checkpoints", 0));
  }
  const Disk disk;
  disk.create_folder(run.workshop().path() / pretrained_folder);
  ImportResult result{.model_type = family.model_type,
                      .tensors = static_cast<std::int64_t>(receipt.dtypes.size()),
                      .packed = receipt.experts != ExpertForm::each,
                      .converted = receipt.converted(),
                      .check = receipt.check,
                      .left_out = receipt.left_out,
                      .files = {},
                      .adapted = adapter.has_value() ? adapter->matrices() : 0};
  for (const TravellingFile& file : travelling) {
    run.workshop().write_text((fs::path(pretrained_folder) / file.name).string(), file.text);
    result.files.push_back(file.name);
  }
  run.workshop().write_text((fs::path(pretrained_folder) / "receipt.json").string(), receipt.to_json());
  disk.sync_folder(run.workshop().path() / pretrained_folder);
  run.finish(config);
  result.left_behind = files_left_behind(options.source, weights);
  result.notes = std::move(notes);
  for (std::string& note : notes_on_tokenizer(options.source)) {
    result.notes.push_back(std::move(note));
  }
  for (const TensorPlace& place : receipt.places) {
    result.parameters += place.ours.starts_with(gate_state_prefix) ? 0 : place.elements();
  }
  return result;
}

}  // namespace orthant
