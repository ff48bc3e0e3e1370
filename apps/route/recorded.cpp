#include "apps/route/recorded.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/list_folder.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/safetensors.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

template <class T>
std::vector<T> values_of(const SafetensorsReader& reader, const std::string& name, DType dtype, std::size_t count) {
  const FileTensor& tensor = reader.at(name);
  const std::span<const std::byte> bytes = reader.bytes(tensor);
  require(tensor.dtype == dtype && bytes.size() == count * sizeof(T), "{}: '{}' has {} bytes of {}, expected {} of {}",
          reader.file().path().string(), name, bytes.size(), tensor.dtype.name(), count * sizeof(T),
          FileType(dtype).name());
  std::vector<T> values(count);
  if (count > 0) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}

void require_checksum(const fs::path& file, const nlohmann::json& wanted) {
  const std::string found = recorded_checksum(checksum_of_file(file).checksum);
  require(wanted == nlohmann::json(found),
          "{}: it is damaged, or of another recording: its checksum is {}, and recording.json says {}; record again",
          file.string(), found, wanted.dump());
}

void require_finite(const std::vector<float>& values, const fs::path& file, int layer, const char* what) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  require(bad == values.end(), "{}: layer {} has a number that is not finite among its '{}' ({} at element {})",
          file.string(), layer, what, bad == values.end() ? 0.0f : *bad, bad - values.begin());
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

RecordedTokens read_part(const fs::path& file, std::int64_t experts, std::int64_t kept) {
  const SafetensorsReader reader(file);
  RecordedTokens part;
  require(!reader.at("index").sizes.empty(), "{}: 'index' is no list", file.string());
  const auto tokens = static_cast<std::size_t>(reader.at("index").sizes[0]);
  const auto logits = tokens * static_cast<std::size_t>(kept);
  part.index = values_of<std::int64_t>(reader, "index", DType::i64, tokens);
  part.valid = values_of<std::uint8_t>(reader, "valid", DType::u8, tokens);
  if (reader.find("token") != nullptr) {
    part.token = values_of<std::int32_t>(reader, "token", DType::i32, tokens);
  }
  std::vector<int> layers;
  for (const FileTensor& tensor : reader.tensors()) {
    int layer = 0;
    const std::string stem = "layers.";
    const char* const end = tensor.name.data() + tensor.name.size();
    if (tensor.name.starts_with(stem) && tensor.name.ends_with(".lse") &&
        std::from_chars(tensor.name.data() + stem.size(), end, layer).ec == std::errc()) {
      layers.push_back(layer);
    }
  }
  std::sort(layers.begin(), layers.end());
  for (const int layer : layers) {
    RecordedLayer& to = part.layers.emplace_back();
    to.layer = layer;
    to.logits = values_of<float>(reader, recorded_name(layer, "logits"), DType::f32, logits);
    to.lse = values_of<float>(reader, recorded_name(layer, "lse"), DType::f32, tokens);
    require_finite(to.logits, file, layer, "logits");
    require_finite(to.lse, file, layer, "lse");
    if (kept < experts) {
      to.expert = values_of<std::int32_t>(reader, recorded_name(layer, "experts"), DType::i32, logits);
      require(std::all_of(to.expert.begin(), to.expert.end(), [&](std::int32_t e) { return e >= 0 && e < experts; }),
              "{}: layer {} names experts that the model of {} does not have", file.string(), layer, experts);
    }
    if (reader.find(recorded_name(layer, "state")) != nullptr) {
      to.state = values_of<float>(reader, recorded_name(layer, "state"), DType::f32, static_cast<std::size_t>(experts));
      require_finite(to.state, file, layer, "state");
    }
  }
  return part;
}

std::vector<int> layers_of(const RecordedTokens& tokens) {
  std::vector<int> layers;
  for (const RecordedLayer& layer : tokens.layers) {
    layers.push_back(layer.layer);
  }
  return layers;
}

}  // namespace

std::vector<std::int64_t> recorded_steps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const fs::path& path : list_folder(run / "routing", error)) {
    const std::string name = path.filename().string(), stem = "step_";
    std::int64_t step = 0;
    const char* const last = name.data() + name.size();
    if (name.starts_with(stem) && std::from_chars(name.data() + stem.size(), last, step).ptr == last &&
        fs::exists(path / "recording.json", error)) {
      steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  if (steps.empty()) {
    throw ConfigError(
        fmt::format("{}: no routing is recorded; train with --set run.record_routing=2", (run / "routing").string()));
  }
  return steps;
}

RecordedStep read_recording(const fs::path& run, std::int64_t step, const Settings& settings) {
  const fs::path folder = recording_folder(run, step), manifest = folder / "recording.json";
  const MappedFile file(manifest);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto number = [&](const char* key) {
    require(json.is_object() && json.contains(key) && json[key].is_number_integer(), "{}: expected a number '{}'",
            manifest.string(), key);
    return json[key].get<std::int64_t>();
  };
  require(number("format") == recording_format, "{}: it has format {}, this program reads {}", manifest.string(),
          number("format"), recording_format);
  require(number("step") == step, "{}: it is of step {}, and its folder is that of step {}", manifest.string(),
          number("step"), step);
  RecordedStep recorded{.step = number("step"), .kept_logits = number("logits"), .of_stages = {}};
  const std::int64_t tokens = number("tokens"), experts = settings.moe.experts;
  require(
      recorded.kept_logits > 0 && recorded.kept_logits <= experts && json.contains("parts") && json["parts"].is_array(),
      "{}: it is of another model than this one of {} experts", manifest.string(), experts);
  const nlohmann::json checksums = json.value("checksums", nlohmann::json());
  require(checksums.is_null() || (checksums.is_array() && checksums.size() == json["parts"].size()),
          "{}: expected a checksum for each of its {} parts", manifest.string(), json["parts"].size());
  // Ranks of one stage have the same layers.
  std::map<std::vector<int>, RecordedTokens> stages;
  for (std::size_t number_of_part = 0; number_of_part < json["parts"].size(); ++number_of_part) {
    const nlohmann::json& part = json["parts"][number_of_part];
    require(part.is_string() && part.get<std::string>().find('/') == std::string::npos, "{}: bad name of a part",
            manifest.string());
    if (!checksums.is_null()) {
      require_checksum(folder / part.get<std::string>(), checksums[number_of_part]);
    }
    RecordedTokens more = read_part(folder / part.get<std::string>(), experts, recorded.kept_logits);
    RecordedTokens& to = stages[layers_of(more)];
    append(to.index, more.index);
    append(to.valid, more.valid);
    append(to.token, more.token);
    to.layers.resize(more.layers.size());
    for (std::size_t i = 0; i < more.layers.size(); ++i) {
      RecordedLayer &whole = to.layers[i], &from = more.layers[i];
      whole.layer = from.layer;
      append(whole.logits, from.logits);
      append(whole.expert, from.expert);
      append(whole.lse, from.lse);
      whole.state = from.state;
    }
  }
  for (auto& [layers, all] : stages) {
    sort_tokens(all);
    bool whole = static_cast<std::int64_t>(all.index.size()) == tokens;
    for (std::size_t t = 0; whole && t < all.index.size(); ++t) {
      whole = all.index[t] == static_cast<std::int64_t>(t);
    }
    require(whole, "{}: its parts do not make the {} tokens of the step, each once", folder.string(), tokens);
    if (!layers.empty()) {
      recorded.of_stages.push_back(std::move(all));
    }
  }
  return recorded;
}

}  // namespace orthant
