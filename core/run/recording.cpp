#include "core/run/recording.h"

#include <orthant/error.h>
#include <orthant/gate.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/base/list_folder.h"
#include "core/checkpoint/disk.h"
#include "core/checkpoint/safetensors.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t all_up_to = 64, beyond_top_k = 8;
constexpr int format = 1;

class TextSink final : public ByteSink {
 public:
  void write(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

// What goes into a file, and its bytes.
struct Entries {
  std::vector<FileTensor> tensors;
  std::vector<std::span<const std::byte>> bytes;

  template <class T>
  void add(const std::string& name, DType dtype, const std::vector<T>& values, std::vector<std::int64_t> sizes) {
    tensors.push_back({.name = name, .dtype = dtype, .sizes = std::move(sizes)});
    bytes.push_back(std::as_bytes(std::span(values)));
  }
};

// Rows of `columns` elements in another order.
template <class T>
void reorder(std::vector<T>& rows, const std::vector<std::size_t>& order) {
  const std::size_t columns = order.empty() ? 0 : rows.size() / order.size();
  std::vector<T> sorted;
  sorted.reserve(rows.size());
  for (const std::size_t row : order) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(row * columns);
    sorted.insert(sorted.end(), first, first + static_cast<std::ptrdiff_t>(columns));
  }
  rows = std::move(sorted);
}

void sort_tokens(RecordedTokens& tokens) {
  std::vector<std::size_t> order(tokens.index.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return tokens.index[a] < tokens.index[b]; });
  if (std::is_sorted(tokens.index.begin(), tokens.index.end())) {
    return;
  }
  reorder(tokens.index, order);
  reorder(tokens.valid, order);
  reorder(tokens.token, order);
  for (RecordedLayer& layer : tokens.layers) {
    reorder(layer.logits, order);
    reorder(layer.expert, order);
    reorder(layer.lse, order);
  }
}

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

std::string checksum_text(std::uint64_t checksum) {
  return fmt::format("xxh3:{:016x}", checksum);
}

void require_checksum(const fs::path& file, const nlohmann::json& wanted) {
  const std::string found = checksum_text(checksum_of_file(file).checksum);
  require(wanted == nlohmann::json(found),
          "{}: it is damaged, or of another recording: its checksum is {}, and recording.json says {}; record again",
          file.string(), found, wanted.dump());
}

void require_finite(const std::vector<float>& values, const fs::path& file, int layer, const char* what) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  require(bad == values.end(), "{}: layer {} has a number that is not finite among its '{}' ({} at element {})",
          file.string(), layer, what, bad == values.end() ? 0.0f : *bad, bad - values.begin());
}

std::string layer_key(int layer, const char* what) {
  return fmt::format("layers.{}.{}", layer, what);
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
    to.logits = values_of<float>(reader, layer_key(layer, "logits"), DType::f32, logits);
    to.lse = values_of<float>(reader, layer_key(layer, "lse"), DType::f32, tokens);
    require_finite(to.logits, file, layer, "logits");
    require_finite(to.lse, file, layer, "lse");
    if (kept < experts) {
      to.expert = values_of<std::int32_t>(reader, layer_key(layer, "experts"), DType::i32, logits);
      require(std::all_of(to.expert.begin(), to.expert.end(), [&](std::int32_t e) { return e >= 0 && e < experts; }),
              "{}: layer {} names experts that the model of {} does not have", file.string(), layer, experts);
    }
    if (reader.find(layer_key(layer, "state")) != nullptr) {
      to.state = values_of<float>(reader, layer_key(layer, "state"), DType::f32, static_cast<std::size_t>(experts));
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

bool needs_all_logits(const Settings& settings) {
  const MoeSettings& moe = settings.moe;
  const Gate& gate = gate_of(settings);
  const GateConfig config = gate.config(settings);
  return config.experts_choose || gate.keeps_state(moe) || config.groups_per_token < config.expert_groups;
}

std::int64_t recorded_logits(const Settings& settings) {
  const MoeSettings& moe = settings.moe;
  if (needs_all_logits(settings) || moe.experts <= all_up_to) {
    return moe.experts;
  }
  const std::int64_t wanted = settings.run.record_logits;
  return std::min(moe.experts, std::max(wanted > 0 ? wanted : moe.top_k + beyond_top_k, moe.top_k));
}

fs::path recording_folder(const fs::path& run, std::int64_t step) {
  return run / "routing" / fmt::format("step_{:06}", step);
}

std::string part_name(int rank) {
  return fmt::format("rank_{:05}.safetensors", rank);
}

RecordedPart write_part(const fs::path& folder, int rank, RecordedTokens tokens, std::int64_t experts,
                        std::int64_t kept_logits) {
  sort_tokens(tokens);
  const auto count = static_cast<std::int64_t>(tokens.index.size());
  Entries entries;
  entries.add("index", DType::i64, tokens.index, {count});
  entries.add("valid", DType::u8, tokens.valid, {count});
  if (!tokens.token.empty()) {
    entries.add("token", DType::i32, tokens.token, {count});
  }
  for (const RecordedLayer& layer : tokens.layers) {
    entries.add(layer_key(layer.layer, "logits"), DType::f32, layer.logits, {count, kept_logits});
    if (!layer.expert.empty()) {
      entries.add(layer_key(layer.layer, "experts"), DType::i32, layer.expert, {count, kept_logits});
    }
    entries.add(layer_key(layer.layer, "lse"), DType::f32, layer.lse, {count});
    if (!layer.state.empty()) {
      entries.add(layer_key(layer.layer, "state"), DType::f32, layer.state, {experts});
    }
  }
  TextSink sink;
  SafetensorsWriter writer(sink, entries.tensors, {});
  for (const std::span<const std::byte> bytes : entries.bytes) {
    writer.write(bytes);
  }
  writer.finish();
  const Disk disk;
  disk.create_folder(folder);
  disk.replace_file(folder / part_name(rank), sink.text);
  return {part_name(rank), checksum_text(checksum_of(std::as_bytes(std::span(sink.text))))};
}

void finish_recording(const fs::path& folder, std::int64_t step, const std::vector<RecordedPart>& parts,
                      std::int64_t tokens, std::int64_t kept_logits) {
  std::vector<std::string> names, checksums;
  for (const RecordedPart& part : parts) {
    names.push_back(part.name);
    checksums.push_back(part.checksum);
  }
  const nlohmann::ordered_json json = {{"format", format},      {"step", step},   {"tokens", tokens},
                                       {"logits", kept_logits}, {"parts", names}, {"checksums", checksums}};
  const Disk disk;
  disk.replace_file(folder / "recording.json", json.dump(2) + "\n");
  disk.sync_folder(folder);
}

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
  require(number("format") == format, "{}: it has format {}, this program reads {}", manifest.string(),
          number("format"), format);
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
