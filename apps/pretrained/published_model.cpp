#include "apps/pretrained/published_model.h"

#include <fmt/ranges.h>

#include <span>
#include <utility>

#include "apps/pretrained/grown_vocabulary.h"
#include "apps/pretrained/plugin_families.h"
#include "apps/pretrained/tensor_matching.h"
#include "core/base/json.h"
#include "core/checkpoint/slices.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

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

FamilyPtr family_in(const ConfigLink::Theirs& config, const fs::path& source, const PluginKeys& plugin_keys,
                    const PluginKinds& plugin_kinds) {
  const auto type = config.find("model_type");
  const std::string name = type != config.end() && type->is_string() ? type->get<std::string>() : "";
  if (FamilyPtr own = find_family(name, Catalogue()); own != nullptr) {
    return own;
  }
  std::vector<std::string> known;
  for (const Family& one : families()) {
    known.push_back(one.model_type);
  }
  FamilyPtr found = find_family_of_plugins(name, plugin_keys, plugin_kinds, known);
  if (found == nullptr) {
    throw ConfigError(fmt::format("'{}' is of the family \"{}\" (model_type), which is not read here; known are {}",
                                  (source / "config.json").string(), name, fmt::join(known, ", ")));
  }
  return found;
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
NewTensor new_tensor(const TensorPlace& place, const SourceFloats& floats, const PeftAdapter* adapter,
                     std::int64_t vocabulary) {
  if (!has_row_for_each_token(place.ours)) {
    return {place.ours, place.our_shape(),
            [&floats, &place, adapter](float* out) { read_place(place, floats, adapter, out); }};
  }
  const std::int64_t columns = place.shape.size() > 1 ? place.shape[1] : 1;
  return {place.ours, place.shape.size() > 1 ? Shape{vocabulary, columns} : Shape{vocabulary},
          [&floats, &place, adapter, vocabulary, columns](float* out) {
            read_place(place, floats, adapter, out);
            fill_new_rows(out, place.shape[0], vocabulary, columns);
          }};
}

}  // namespace

PublishedModel::PublishedModel(const ImportOptions& options, NewRun& run, const PluginKeys& plugin_keys,
                               const PluginKinds& plugin_kinds) {
  ConfigLink::Theirs theirs = read_config(options.source);
  family_ = family_in(theirs, options.source, plugin_keys, plugin_kinds);
  const std::string where = fmt::format("'{}'", (options.source / "config.json").string());
  drop_null(theirs, "quantization_config");
  const bool quantised = theirs.contains("quantization_config");
  const bool in_mxfp4 = family_->names == MoeNames::gpt_oss && says_mxfp4(theirs, where);
  const std::optional<ScaleBlocks> blocks = in_mxfp4 ? std::nullopt : scale_blocks_in(theirs, where);
  theirs.erase("quantization_config");
  if (quantised && !options.check_by.empty()) {
    throw ConfigError(fmt::format(
        "{} is quantised: transformers {}, and has other logits. Leave out --check", where,
        in_mxfp4 ? "computes a model in MXFP4 with kernels of its own" : "rounds activations of such a model too"));
  }
  ConfigLink reading(theirs);
  family_->state(reading);
  OurKeys keys = reading.read(where, options.passed_over);
  if (!family_->plugin.empty()) {
    keys.emplace_back("plugins." + family_->plugin, "");
  }
  if (options.with_mtp) {
    keys.emplace_back("model.mtp_depth", std::to_string(depths_in(theirs, *family_, where)));
  }

  const std::int64_t tokens = grow_vocabulary(keys, options.vocabulary, where);
  if (options.vocabulary > 0 && !options.check_by.empty()) {
    throw ConfigError("--vocabulary: the model has more logits than transformers finds. Leave out --check");
  }

  if (!options.adapter.empty() && !options.check_by.empty()) {
    throw ConfigError("--adapter: transformers finds the logits of the model without it. Leave out --check");
  }

  travelling_ = read_travelling_files(options.source);
  const std::string name = fs::absolute(options.source / "").lexically_normal().parent_path().filename().string();
  config_ =
      run.configure(keys, fmt::format("The model of {} ({}), written by orthant import.", name, family_->model_type),
                    plugin_keys, plugin_kinds);
  notes_ = notes_on_ends(options.source, config_.settings.model.vocab_size);
  weights_.emplace(options.source);
  floats_.emplace(*weights_, blocks, in_mxfp4);
  Settings published = config_.settings;
  published.model.vocab_size = tokens;
  receipt_ = match_tensors(options.source, *family_, published, *weights_, *floats_, options.left_out);
  if (!options.adapter.empty()) {
    adapter_.emplace(options.adapter);
    adapter_->check(receipt_.places);
  }
  for (const std::string& key : options.passed_over) {
    receipt_.passed_over[key] = theirs[key].dump();
  }
  for (const TensorPlace& place : receipt_.places) {
    tensors_.push_back(
        new_tensor(place, *floats_, adapter_.has_value() ? &*adapter_ : nullptr, config_.settings.model.vocab_size));
    places_.emplace(place.ours, tensors_.size() - 1);
  }
}

void PublishedModel::write_travelling(const NewRun& run) const {
  const Disk disk;
  const fs::path folder = run.workshop().path() / pretrained_folder;
  disk.create_folder(folder);
  for (const TravellingFile& file : travelling_) {
    run.workshop().write_text((fs::path(pretrained_folder) / file.name).string(), file.text);
  }
  disk.sync_folder(folder);
}

CheckpointReader PublishedModel::reader(const std::shared_ptr<const PublishedModel>& model, const fs::path& source,
                                        std::map<std::string, std::string> state) {
  std::map<std::string, CheckpointReader::TensorInfo> infos;
  for (const NewTensor& tensor : model->tensors_) {
    infos[tensor.name] = {.dtype = DType::f32, .shape = tensor.shape};
  }
  return {source, infos, std::move(state), model};
}

void PublishedModel::read(const std::string& name, const std::vector<std::int64_t>& offset,
                          const std::vector<std::int64_t>& size, void* out) const {
  const NewTensor& tensor = tensors_[places_.at(name)];
  const Box all = whole(tensor.shape), wanted{offset, size};
  if (wanted.elements() == all.elements()) {
    tensor.fill(static_cast<float*>(out));
    return;
  }
  std::vector<float> filled(static_cast<std::size_t>(all.elements()));
  tensor.fill(filled.data());
  copy_overlap(std::as_bytes(std::span(filled)), all, out, wanted, sizeof(float));
}

}  // namespace orthant
