#include "core/run/starting_weights.h"

#include <orthant/error.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/arch/links.h"
#include "core/arch/trained.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/model_folder.h"
#include "core/run/saving.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// At most so many parameters are named in a refusal.
constexpr std::size_t most_named = 6;

class Differences {
 public:
  void add(std::string line) {
    if (++count_ <= most_named) {
      lines_.push_back(std::move(line));
    }
  }
  void throw_if_any(const fs::path& checkpoint) const {
    if (count_ == 0) {
      return;
    }
    const std::string more = count_ > most_named ? fmt::format("\n  and {} more", count_ - most_named) : "";
    throw ConfigError(
        fmt::format("{} is of another model:\n  {}{}", checkpoint.string(), fmt::join(lines_, "\n  "), more));
  }

 private:
  std::vector<std::string> lines_;
  std::size_t count_ = 0;
};

// What the run that wrote the checkpoint says of the factors of its adapters, where it has any; keys that it does not
// know have their defaults.
std::optional<LoraSettings> lora_of(const CheckpointReader& reader) {
  const std::vector<std::string> names = reader.names();
  const auto remembered = reader.state().find("settings");
  if (std::none_of(names.begin(), names.end(), is_adapter) || remembered == reader.state().end()) {
    return {};
  }
  const nlohmann::json settings = nlohmann::json::parse(remembered->second, nullptr, false);
  const auto number = [&](const char* key) {
    double value = 0;  // whatever the locale writes for a point
    if (settings.is_object() && settings.contains(key) && settings[key].is_string()) {
      const std::string& text = settings[key].get_ref<const std::string&>();
      std::from_chars(text.data(), text.data() + text.size(), value);
    }
    return value;
  };
  const auto list = [&](const char* key) {
    const bool written = settings.is_object() && settings.contains(key) && settings[key].is_string();
    const auto value = written ? nlohmann::json::parse(settings[key].get_ref<const std::string&>(), nullptr, false)
                               : nlohmann::json::array();
    return value.is_array() ? value : nlohmann::json::array();
  };
  LoraSettings lora;
  lora.rank = static_cast<std::int64_t>(number("lora.rank"));
  lora.alpha = number("lora.alpha");
  lora.rank_stabilised = settings.is_object() && settings.value("lora.rank_stabilised", std::string()) == "true";
  lora.rank_of = list("lora.rank_of").get<std::vector<std::string>>();
  lora.ranks = list("lora.ranks").get<std::vector<std::int64_t>>();
  lora.alpha_of = list("lora.alpha_of").get<std::vector<std::string>>();
  lora.alphas = list("lora.alphas").get<std::vector<double>>();
  return lora.rank > 0 ? std::optional(lora) : std::nullopt;
}

}  // namespace

fs::path starting_checkpoint(const fs::path& from, const char* key) {
  if (!fs::is_directory(from)) {
    throw ConfigError(fmt::format("{}: '{}' {}: give the folder of a run, an import or a checkpoint", key,
                                  from.string(), fs::exists(from) ? "is not a folder" : "does not exist"));
  }
  if (is_checkpoint(from)) {
    return from;
  }
  for (const NamedCheckpoint& checkpoint : checkpoints_in(from / "checkpoints")) {
    if (checkpoint.finished()) {
      return checkpoint.path;
    }
  }
  throw ConfigError(fmt::format("{}: '{}' has no complete checkpoint under checkpoints/{}", key, from.string(),
                                hint_of_published(from)));
}

namespace {

// Adapters and depths of multi-token prediction that the checkpoint has not, such depths that the model has not, and
// what begins anew.
enum class Beside { allowed, refused };

Differences differences_of(const CheckpointReader& reader, const Settings& settings, Beside beside) {
  Differences differences;
  std::set<std::string> known;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      known.insert(spec.name);
      if (!reader.has(spec.name)) {
        if (beside == Beside::allowed &&
            (is_adapter(spec.name) || is_mtp(spec.name) || may_begin_anew(settings, spec.name))) {
          continue;
        }
        differences.add(fmt::format("it has no '{}'", spec.name));
      } else if (const Shape shape = reader.info(spec.name).shape;
                 shape != spec.global && !(beside == Beside::allowed && may_begin_anew(settings, spec.name))) {
        differences.add(fmt::format("'{}' is {} there and {} here", spec.name, shape, spec.global));
      }
    }
  }
  for (const GateStateSpec& state : gate_state_table(settings)) {
    known.insert(state.name);
    if (!reader.has(state.name) && !(is_mtp(state.name) && beside == Beside::allowed)) {
      differences.add(fmt::format("it has no '{}': its gate is another", state.name));
    }
  }
  for (const std::string& name : reader.names()) {
    if (beside == Beside::allowed && (is_mtp(name) || may_begin_anew(settings, name))) {
      continue;
    }
    if ((is_parameter_name(name) || name.starts_with(gate_state_prefix)) && !known.contains(name)) {
      differences.add(fmt::format("'{}' has no place here{}", name,
                                  is_adapter(name) ? ": it is an adapter's, and [lora] names other ones" : ""));
    }
  }
  return differences;
}

}  // namespace

void check_starting_weights(const fs::path& checkpoint, const Settings& settings) {
  check_starting_weights(CheckpointReader(checkpoint), checkpoint, settings);
}

void check_starting_weights(const CheckpointReader& reader, const fs::path& where, const Settings& settings) {
  Differences differences = differences_of(reader, settings, Beside::allowed);
  if (const auto there = lora_of(reader); there.has_value() && settings.lora.rank > 0) {
    std::set<std::pair<double, double>> told;  // a model has many matrices of one kind
    for (const LayerSpecs& layer : parameter_table(settings)) {
      for (const ParamSpec& spec : layer.params) {
        const double scale = spec.adapted ? there->scale_for(spec.name) : 0;
        const double here = spec.adapted ? settings.lora.scale_for(spec.name) : 0;
        if (std::abs(scale - here) > 1e-9 * here && told.emplace(scale, here).second) {
          differences.add(
              fmt::format("its adapters count lora.alpha / rank = {} times, here {} ('{}')", scale, here, spec.name));
        }
      }
    }
  }
  differences.throw_if_any(where);
}

void check_resumed_weights(const fs::path& checkpoint, const Settings& settings) {
  differences_of(CheckpointReader(checkpoint), settings, Beside::refused).throw_if_any(checkpoint);
}

std::string told_of_depths(const CheckpointReader& reader, const Settings& settings) {
  int there = 0;
  while (reader.has(fmt::format("mtp.{}.eh_proj.weight", there))) {
    ++there;
  }
  const int here = static_cast<int>(settings.model.mtp_depth);
  return there == here ? ""
                       : fmt::format("model.mtp_depth is {} there and {} here: what is {}", there, here,
                                     there < here ? "not there begins anew" : "not here is left out");
}

void copy_origin(const fs::path& checkpoint, const fs::path& run) {
  const fs::path from = run_of(checkpoint) / pretrained_folder, to = run / pretrained_folder;
  if (!fs::is_directory(from)) {
    return;
  }
  const Disk disk;
  disk.create_folder(to);
  for (const fs::directory_entry& file : fs::directory_iterator(from)) {
    if (file.is_regular_file()) {
      fs::copy_file(file.path(), to / file.path().filename(), fs::copy_options::overwrite_existing);
      disk.sync_file(to / file.path().filename());
    }
  }
  disk.sync_folder(to);
}

}  // namespace orthant
