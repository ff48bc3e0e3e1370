#include "apps/pretrained/export.h"

#include <orthant/gate.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "apps/pretrained/adapter_files.h"
#include "apps/pretrained/merged_weights.h"
#include "apps/pretrained/run_source.h"
#include "apps/pretrained/tensor_names.h"
#include "apps/pretrained/text_export.h"
#include "apps/pretrained/twin.h"
#include "apps/pretrained/workshop.h"
#include "core/arch/decoder.h"
#include "core/arch/trained.h"
#include "core/checkpoint/checkpoint.h"
#include "core/device/cpu/bf16.h"
#include "core/run/run_ids.h"
#include "core/run/saving.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Refuses a checkpoint that is not of the configuration. places: of every parameter, and of gates' states that count.
// with_mtp: else those of multi-token prediction are left out.
void check_checkpoint(const CheckpointReader& reader, const std::vector<TensorPlace>& places, bool with_mtp) {
  std::size_t parameters = 0;
  for (const TensorPlace& place : places) {
    require(reader.has(place.ours), "the checkpoint of step {} has no '{}': it is not of this run's configuration",
            reader.step(), place.ours);
    const CheckpointReader::TensorInfo info = reader.info(place.ours);
    const Shape wanted = place.our_shape();
    require(info.shape == wanted && info.dtype == DType::f32,
            "the checkpoint's '{}' is {} {}, the configuration makes it f32 {}", place.ours, name_of(info.dtype),
            info.shape, wanted);
    parameters += place.ours.starts_with(gate_state_prefix) ? 0 : 1;
  }
  const std::vector<std::string> names = reader.names();
  const auto weights = std::count_if(names.begin(), names.end(), [&](const std::string& name) {
    return is_parameter_name(name) && (with_mtp || !is_mtp(name));
  });
  require(static_cast<std::size_t>(weights) == parameters,
          "the checkpoint of step {} has {} parameters, the configuration makes {}", reader.step(), weights,
          parameters);
}

// A bias of zeros, of which the run knows nothing.
bool is_added(const TensorPlace& place, const Twin& twin) {
  return twin.zero_output_bias && place.ours.ends_with(".o_proj.bias");
}

// The last matrix of a routed expert.
bool is_expert_output(const std::string& name) {
  return name.find(".experts.") != std::string::npos && name.ends_with(".w2.weight");
}

// A tensor of the file, and what of ours it is made of.
struct Exported {
  FileTensor tensor;
  std::vector<TensorPlace> parts;
};

// As asked for, else as the origin has it. What the origin does not have, and every tensor of a model that its family
// cannot say, gets the type of all its tensors, f32 where they have two.
DType type_of(const std::string& theirs, const Twin& twin, const Origin* origin, std::optional<DType> dtype) {
  if (dtype.has_value() || origin == nullptr || origin->dtypes.empty()) {
    return dtype.value_or(DType::f32);
  }
  const auto source = origin->dtypes.find(theirs);
  if (twin.family != nullptr && source != origin->dtypes.end()) {
    return source->second;
  }
  return std::all_of(origin->dtypes.begin(), origin->dtypes.end(),
                     [](const auto& tensor) { return tensor.second == DType::bf16; })
             ? DType::bf16
             : DType::f32;
}

// In the order in which our table meets them: the weights with what adapters add, or the adapters alone.
std::vector<Exported> tensors_of(const Config& config, const Twin& twin, const Origin* origin,
                                 const ExportOptions& options, const CheckpointReader& reader) {
  const std::optional<DType> dtype = options.dtype;
  static const Family own{"orthant", "", MoeNames::none, "", {}};
  const ExpertForm form = form_of(twin, origin);
  Settings settings = config.settings;
  if (twin.zero_output_bias) {
    kind_values(settings, "model")["output_bias"] = true;
  }
  std::vector<TensorPlace> places = tensor_places(twin.family == nullptr ? own : *twin.family, settings, form);
  if (twin.family == nullptr) {
    std::erase_if(places, [](const TensorPlace& place) { return place.ours.starts_with(gate_state_prefix); });
  }
  std::vector<TensorPlace> stored = places;
  std::erase_if(stored, [&](const TensorPlace& place) { return is_added(place, twin); });
  check_checkpoint(reader, stored, config.settings.model.mtp_depth > 0);
  if (options.adapter) {
    places = adapter_places(config, twin, form);
  } else {
    std::erase_if(places, [](const TensorPlace& place) { return is_adapter(place.ours); });
  }
  if (twin.family != nullptr && !options.adapter) {
    for (const auto& [of, copy] : mtp_copies(*twin.family, config.settings)) {
      TensorPlace place = *std::find_if(places.begin(), places.end(), [&](const auto& p) { return p.theirs == of; });
      place.theirs = copy;
      places.push_back(std::move(place));
    }
  }
  std::vector<Exported> tensors;
  std::map<std::string, std::size_t> index;
  for (TensorPlace& place : places) {
    const auto [at, added] = index.emplace(place.theirs, tensors.size());
    if (added) {
      // A gate's biases decide between near neighbours: transformers keeps them in fp32 too.
      const bool of_gate = place.ours.starts_with(gate_state_prefix);
      const DType type = options.adapter ? dtype.value_or(DType::f32)
                                         : type_of(place.theirs, twin, origin, of_gate ? std::nullopt : dtype);
      tensors.push_back({{.name = place.theirs, .dtype = type, .sizes = place.sizes}, {}});
    }
    tensors[at->second].parts.push_back(std::move(place));
  }
  return tensors;
}

// Returns the number of parameters.
std::int64_t write_weights(const fs::path& path, const CheckpointReader& reader, const Settings& settings,
                           const std::vector<Exported>& tensors, const Twin& twin, const Disk& disk) {
  DiskFile file(disk, path);
  std::vector<FileTensor> heads;
  for (const Exported& exported : tensors) {
    heads.push_back(exported.tensor);
  }
  SafetensorsWriter writer(file, heads, {{"format", "pt"}});  // transformers refuses a file without it
  std::uint64_t bytes = 0;
  for (const FileTensor& head : heads) {
    bytes += static_cast<std::uint64_t>(
                 std::accumulate(head.sizes.begin(), head.sizes.end(), std::int64_t{1}, std::multiplies<>())) *
             head.dtype.bytes();
  }
  disk.require_room(path.parent_path(), bytes, "make room, give -o on another disk, or --dtype bf16 for half of it");
  std::vector<float> values, ours;
  std::vector<BFloat16> rounded;
  std::int64_t parameters = 0;
  std::set<std::string> counted;  // a tensor may be there twice
  for (const Exported& exported : tensors) {
    std::int64_t elements = 0;
    for (const TensorPlace& part : exported.parts) {
      elements += part.elements();
    }
    values.resize(static_cast<std::size_t>(elements));
    for (const TensorPlace& part : exported.parts) {
      if (is_added(part, twin)) {
        std::fill(values.begin(), values.end(), 0.0f);
      } else if (part.ours.starts_with(gate_state_prefix)) {
        reader.read(part.ours, {0}, part.shape, values.data() + part.begin);
      } else if (part.in_order()) {
        read_merged(reader, settings, part.ours, part.shape, values.data() + part.begin);
        if (twin.expert_factor != 1 && is_expert_output(part.ours)) {
          std::for_each_n(values.begin() + part.begin, part.elements(),
                          [&](float& w) { w = static_cast<float>(w * twin.expert_factor); });
        }
      } else {
        ours.resize(static_cast<std::size_t>(part.elements()));
        read_merged(reader, settings, part.ours, part.shape, ours.data());
        for (std::int64_t i = 0; i < part.elements(); ++i) {
          values[static_cast<std::size_t>(part.begin + part.at(i))] = ours[static_cast<std::size_t>(i)];
        }
      }
    }
    if (exported.tensor.dtype == DType::bf16) {
      rounded.resize(values.size());
      std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
      writer.write(std::as_bytes(std::span(rounded)));
    } else {
      writer.write(std::as_bytes(std::span(values)));
    }
    const std::string& name = exported.parts.front().ours;
    parameters += name.starts_with(gate_state_prefix) || !counted.insert(name).second ? 0 : elements;
  }
  writer.finish();
  file.sync_and_close();
  return parameters;
}

bool check_output(const fs::path& output, bool replace_existing, bool adapter) {
  if (!fs::exists(output)) {
    return false;
  }
  if (!fs::is_directory(output)) {
    throw ConfigError(fmt::format("'{}' is a file: give a folder to export into", output.string()));
  }
  const bool filled = !fs::is_empty(output);
  if (filled && !replace_existing) {
    throw ConfigError(
        fmt::format("'{}' holds files already: give another folder, or --force to replace the model", output.string()));
  }
  const char* const other = adapter ? "config.json" : "adapter_config.json";
  if (fs::exists(output / other)) {
    throw ConfigError(
        fmt::format("'{}' holds {}, {}: who loads a folder with both adds the one to the other; give another folder",
                    output.string(), other, adapter ? "a model's" : "an adapter's"));
  }
  // Programs that read a model take each file of weights that they find.
  for (const fs::directory_entry& file : fs::directory_iterator(output)) {
    const std::string name = file.path().filename().string();
    if (!adapter && name != "model.safetensors" &&
        (name.ends_with(".safetensors") || name.starts_with("pytorch_model"))) {
      throw ConfigError(
          fmt::format("'{}' holds weights that --force does not replace, '{}': who loads the folder may take those; "
                      "remove them, or give another folder",
                      output.string(), name));
    }
  }
  return filled;
}

std::vector<std::string> notes_on(const Settings& s, const Twin& twin, const Origin* origin, bool asked) {
  std::vector<std::string> notes;
  if (origin != nullptr && !origin->converted.empty() && !asked) {
    notes.push_back(
        fmt::format("the source's {} tensors are written as fp32, which has all of their bits; --dtype bf16 takes half "
                    "of that, rounded",
                    fmt::join(origin->converted, " and ")));
  }
  if (twin.expert_factor != 1) {
    notes.push_back(
        fmt::format("moe.weight_scale = {} is multiplied into the experts' last matrices: model type \"{}\" has no key "
                    "for it{}",
                    twin.expert_factor, twin.family->model_type,
                    std::exp2(std::round(std::log2(twin.expert_factor))) == twin.expert_factor
                        ? ""
                        : ", and they are rounded once more"));
  }
  if (twin.zero_output_bias) {
    notes.push_back(fmt::format("o_proj has biases, all zero: model type \"{}\" has them where q_proj has",
                                twin.family->model_type));
  }
  if (twin.family == nullptr) {
    for (const std::string& reason : twin.reasons) {
      notes.push_back("no twin in transformers: " + reason);
    }
    notes.push_back("exported under Orthant's names (model_type \"orthant\"): transformers will not load it");
  } else if (twin.family->plugin.empty() && routed_in(links_of(s)) > 0 && s.moe.capacity_factor > 0) {
    notes.push_back(
        fmt::format("trained with moe.capacity_factor = {}: transformers drops no token, so its loss differs "
                    "from the one measured here where tokens were dropped",
                    s.moe.capacity_factor));
  }
  return notes;
}

// "fp32", "bf16", or both.
std::string dtypes_of(const std::vector<Exported>& tensors) {
  std::set<std::string> names;
  for (const Exported& exported : tensors) {
    if (!exported.parts.front().ours.starts_with(gate_state_prefix)) {
      names.insert(exported.tensor.dtype == DType::bf16 ? "bf16" : "fp32");
    }
  }
  return fmt::format("{}", fmt::join(names, " and "));
}

// Puts the files of the folder `from` into `output`, each at once. The tokenizer that goes with other weights goes.
void replace_files(const fs::path& from, const fs::path& output, bool adapter, const Disk& disk) {
  std::vector<fs::path> stale;
  for (const std::string& name : adapter ? std::vector<std::string>() : travelling_files()) {
    if (!fs::exists(from / name) && fs::exists(output / name)) {
      stale.push_back(output / name);
    }
  }
  for (const fs::path& file : stale) {
    disk.remove_all(file);
  }
  for (const fs::directory_entry& file : fs::directory_iterator(from)) {
    disk.rename(file.path(), output / file.path().filename());
  }
  disk.sync_folder(output);
}

}  // namespace

std::vector<std::string> without_twin(const Config& config) {
  const Twin twin = twin_of(config);
  return twin.family == nullptr ? twin.reasons : std::vector<std::string>();
}

ExportResult export_run(const ExportOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  if (options.output.empty()) {
    throw ConfigError("the output has no name: give the folder to export into");
  }
  const fs::path output = fs::absolute(options.output / "").lexically_normal().parent_path();
  const bool filled = check_output(output, options.replace_existing, options.adapter);
  const RunSource source = find_run_source(options.run, "export");
  // The data may be gone by now, and nothing is read from it.
  Config config = load_config(source.config.string(), {"data.source=\"none\""}, plugin_keys, plugin_kinds);
  if (options.adapter) {
    require_decoder(config.settings, "export --adapter");
  }
  const CheckpointReader reader = weights_reader(source.checkpoint, options.averages);
  const fs::path run_folder = source.config.parent_path();
  require_same_run(source.checkpoint, reader.state(), run_folder, ids_in(run_folder).run);
  const std::optional<Origin> origin = origin_of(run_folder);
  const Origin* from = origin.has_value() ? &*origin : nullptr;
  const Twin twin = twin_of(config, from);
  const bool left_out =
      config.settings.model.mtp_depth > 0 && (options.adapter || (twin.family != nullptr && twin.family->mtp.empty()));
  if (left_out) {
    leave_out_mtp(config.settings);
  }
  const std::vector<Exported> tensors = tensors_of(config, twin, from, options, reader);

  const std::string dtypes = dtypes_of(tensors);
  const bool types_kept = from != nullptr && from->converted.empty() && !options.dtype.has_value();

  const Disk disk;
  const Workshop workshop(disk, output);
  const fs::path weights = workshop.path() / (options.adapter ? "adapter_model.safetensors" : "model.safetensors");
  const std::int64_t parameters = write_weights(weights, reader, config.settings, tensors, twin, disk);
  std::vector<std::string> notes = notes_on(config.settings, twin, from, options.dtype.has_value());
  if (left_out) {
    notes.push_back(
        fmt::format("the blocks of model.mtp_depth, which only training needs, are left out: {}",
                    options.adapter ? "an adapter's folder has no place for them" : "models of this family have none"));
  }
  if (options.adapter) {
    workshop.write_text("adapter_config.json", adapter_config_json(config, twin));
  } else {
    const TextExport texts(run_folder);
    const std::int64_t positions = reader.step() > 0 ? config.settings.data.sequence_length : 0;
    workshop.write_text("config.json", config_json(config, twin, from,
                                                   {.types_kept = types_kept,
                                                    .dtype = dtypes == "bf16" ? DType::bf16 : DType::f32,
                                                    .special = texts.special(),
                                                    .trained_with = positions}));
    for (std::string& note : texts.write(workshop, config.settings.model.vocab_size)) {
      notes.push_back(std::move(note));
    }
    if (from != nullptr && positions > 0 && positions_stay(config.settings)) {
      notes.push_back(
          fmt::format("max_position_embeddings stays as it was published, as transformers may scale positions by it "
                      "(YaRN); the run's sequences have {} positions",
                      positions));
    }
  }
  if (filled) {
    disk.sync_folder(workshop.path());
    replace_files(workshop.path(), output, options.adapter, disk);
  } else {
    workshop.become_output();
  }
  return {.checkpoint = source.checkpoint,
          .step = reader.step(),
          .parameters = parameters,
          .dtypes = dtypes,
          .model_type = twin.family == nullptr ? "orthant" : twin.family->model_type,
          .notes = std::move(notes),
          .passed_over = source.passed_over};
}

}  // namespace orthant
