#include "core/config/validate_data.h"

#include <orthant/source.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace orthant {
namespace {

namespace fs = std::filesystem;

// A plugin that was not asked may bring the source.
bool reads_files(const Settings& s) {
  return s.catalogue->has<Source>(s.data.source) && s.catalogue->get<Source>(s.data.source).reads_files();
}

// Windows of the files' bytes, whose number is known without a reader. Token files are measured by theirs, which knows
// their header, and so are texts with a tokenizer, or in JSON rows. Documents may be shorter than a sequence.
bool windows_of_bytes(const DataSettings& data) {
  return data.source == "text" && data.tokenizer == "bytes" && data.text_key.empty() &&
         data.documents == Documents::stream;
}

// The bytes of each file of a list; nothing for one that was refused.
std::vector<std::optional<std::uintmax_t>> check_listed(const char* key, const std::vector<std::string>& paths,
                                                        Rules& rules) {
  std::vector<std::optional<std::uintmax_t>> bytes;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string& path = paths[i];
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    const char* problem = nullptr;
    if (!fs::exists(status)) {
      problem =
          error && error != std::errc::no_such_file_or_directory ? "cannot be looked at" : "there is no such file";
    } else if (status.type() == fs::file_type::directory) {
      problem = "is a directory";
    } else if (status.type() != fs::file_type::regular) {
      problem = "is not a regular file";
    } else if (access(path.c_str(), R_OK) != 0) {
      problem = "may not be read by this user";
    }
    if (problem != nullptr) {
      rules.refuse(fmt::format("data.{}", key), i, fmt::format("[data] {}: {}: {}", key, path, problem),
                   "write the path of a file, relative to the file that names it");
      bytes.emplace_back();
    } else {
      const std::uintmax_t size = fs::file_size(path, error);
      bytes.emplace_back(error ? 0 : size);
    }
  }
  return bytes;
}

void check_measured(const Settings& s, Rules& rules) {
  const bool validates = s.run.validate_every > 0;
  rules.expect(!validates || s.data.validation_fraction > 0 || !s.data.validation_path.empty(),
               {"data.validation_fraction", "run.validate_every"},
               fmt::format("[data] validation_fraction: 0 holds nothing out, and the run validates every {} steps",
                           s.run.validate_every),
               "write validation_fraction = 0.1, say, or validation_path = [\"FILE\"], or run.validate_every = 0");
}

void check_files(const Config& config, Rules& rules) {
  const Settings& s = config.settings;
  const std::vector<std::string> path_keys = {"data.path", "data.source"};
  if (!rules.sound(path_keys) || !reads_files(s)) {
    return;
  }
  rules.expect(!s.data.path.empty(), path_keys, fmt::format("[data] source \"{}\" needs files to read", s.data.source),
               "write path = [\"FILE\"] in [data], or give --set data.path=FILE");
  check_measured(s, rules);
  const auto sizes = check_listed("path", s.data.path, rules);
  std::uintmax_t bytes = 0;
  bool all = !sizes.empty();
  for (const std::optional<std::uintmax_t>& size : sizes) {
    all = all && size.has_value();
    bytes += size.value_or(0);
  }
  if (all && windows_of_bytes(s.data) && s.data.blend.empty()) {
    const double training = std::floor(static_cast<double>(bytes) * (1.0 - s.data.validation_fraction));
    const std::int64_t needed = s.data.sequence_length + 1;  // a label for each position
    rules.expect(
        training >= static_cast<double>(needed), {"data.path", "data.sequence_length", "data.validation_fraction"},
        fmt::format("[data] path: {} bytes to train on do not make one sequence of {} positions", training,
                    s.data.sequence_length),
        fmt::format("give at least {} bytes after the share for validation, or shorten sequence_length", needed));
  }
}

// They become keys of metrics, and tags.
bool set_name(std::string_view name) {
  return !name.empty() && name.size() <= 100 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

void check_set_names(const Settings& s, Rules& rules) {
  const std::vector<std::string>& paths = s.data.validation_path;
  const bool written = !s.data.validation_names.empty();
  if (written && s.data.validation_names.size() != paths.size()) {
    rules.expect(
        false, {"data.validation_names", "data.validation_path"},
        fmt::format("[data] validation_names: {} names for {} files", s.data.validation_names.size(), paths.size()),
        "write one name for each file of validation_path");
    return;
  }
  const std::string key = written ? "validation_names" : "validation_path";
  const char* const advice = written ? "write letters, digits, '_' and '-', and each name once"
                                     : "write validation_names, one for each file: letters, digits, '_' and '-'";
  const std::vector<std::string> names = validation_names_of(s);
  std::set<std::string> before;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!set_name(names[i])) {
      rules.refuse("data." + key, i,
                   fmt::format("[data] {}: {} cannot be the name of a validation set", key, in_quotes(names[i])),
                   advice);
    } else if (!before.insert(names[i]).second) {
      rules.refuse("data." + key, i,
                   fmt::format("[data] {}: two validation sets are called {}", key, in_quotes(names[i])), advice);
    }
  }
}

void check_sets(const Settings& s, Rules& rules) {
  if (!rules.sound({"data.validation_path", "data.validation_names", "data.source"})) {
    return;
  }
  check_set_names(s, rules);
  if (!reads_files(s)) {
    return;  // refused where the source is opened: commands that only look at a run read no data
  }
  const std::vector<std::string>& paths = s.data.validation_path;
  const auto sizes = check_listed("validation_path", paths, rules);
  const auto needed = static_cast<std::uintmax_t>(std::max<std::int64_t>(s.data.sequence_length, 0)) + 1;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (sizes[i].has_value() && windows_of_bytes(s.data) && *sizes[i] < needed) {
      rules.refuse("data.validation_path", i,
                   fmt::format("[data] validation_path: {}: its {} bytes do not make one sequence of {} positions",
                               paths[i], *sizes[i], s.data.sequence_length),
                   fmt::format("give at least {} bytes, or shorten sequence_length", needed));
    }
  }
}

void check_blend(const Settings& s, Rules& rules) {
  const DataSettings& data = s.data;
  if (data.blend.empty() || !rules.sound({"data.blend", "data.path", "data.source"})) {
    return;
  }
  rules.expect(!reads_files(s) || data.blend.size() == data.path.size(), {"data.blend", "data.path"},
               fmt::format("[data] blend: {} weights for {} files", data.blend.size(), data.path.size()),
               "write one weight for each file of path");
  for (std::size_t i = 0; i < data.blend.size(); ++i) {
    if (!(data.blend[i] > 0 && std::isfinite(data.blend[i]))) {
      rules.refuse("data.blend", i, fmt::format("[data] blend: the weight {} is not above 0", data.blend[i]),
                   "write a number above 0, or leave the file out");
    }
  }
}

// Each size against the one before. Whether it divides is for the layout to say.
void check_growth(const BatchSettings& batch, Rules& rules) {
  const std::vector<std::string> keys = {"batch.grow_to", "batch.grow_after"};
  if (!rules.sound({"batch.grow_to", "batch.grow_after", "batch.sequences", "batch.micro_batch"})) {
    return;
  }
  if (batch.grow_to.size() != batch.grow_after.size()) {
    rules.expect(false, keys,
                 fmt::format("[batch] grow_to: {} sizes for {} numbers of steps in grow_after", batch.grow_to.size(),
                             batch.grow_after.size()),
                 "write one size for each number of steps: grow_after = [200, 500], grow_to = [16, 32]");
    return;
  }
  std::int64_t steps = 0, size = batch.sequences;
  for (std::size_t i = 0; i < batch.grow_to.size(); ++i) {
    const std::int64_t after = std::exchange(steps, batch.grow_after[i]), from = std::exchange(size, batch.grow_to[i]);
    if (i > 0 && steps <= after) {
      rules.refuse("batch.grow_after", i, fmt::format("[batch] grow_after: {} is not above {} before it", steps, after),
                   "write numbers of steps since the run began, each above the one before");
    }
    if (size <= from) {
      rules.refuse("batch.grow_to", i,
                   fmt::format("[batch] grow_to: {} is not above the {} sequences of the steps before", size, from),
                   "write sizes that grow, the first above batch.sequences");
    }
  }
}

}  // namespace

void check_data(const Config& config, Rules& rules) {
  const Settings& s = config.settings;
  rules.expect(s.run.validate_every == 0 || s.data.validation_sequences > 0,
               {"data.validation_sequences", "run.validate_every"},
               fmt::format("[data] validation_sequences: 0 measures nothing, and the run validates every {} steps",
                           s.run.validate_every),
               "write validation_sequences = 64, say, or run.validate_every = 0");
  rules.expect(s.data.validation_fraction < 1, {"data.validation_fraction"},
               fmt::format("[data] validation_fraction: {} leaves nothing to train on", s.data.validation_fraction),
               "write a number of at least 0 and below 1");
  rules.expect(s.data.documents == Documents::stream || !s.data.separator.empty(), {"data.separator", "data.documents"},
               "[data] separator: is empty, so documents have no ends",
               "write what separates them, or documents = \"stream\"");
  check_files(config, rules);
  check_blend(s, rules);
  check_sets(s, rules);
  const std::int64_t largest = std::max(s.batch.sequences, largest_batch(s.batch));
  const double tokens =
      static_cast<double>(s.run.steps) * static_cast<double>(largest) * static_cast<double>(s.data.sequence_length);
  rules.expect(tokens <= 0x1p62, {"run.steps", "batch.sequences", "data.sequence_length", "batch.grow_to"},
               fmt::format("[run] steps: {} steps of {} sequences of {} positions are more tokens than can be counted "
                           "(2^62)",
                           s.run.steps, largest, s.data.sequence_length),
               "write fewer");
  const std::int64_t micro = s.batch.micro_batch.written();
  rules.expect(
      micro == 0 || s.batch.sequences % micro == 0, {"batch.micro_batch", "batch.sequences"},
      fmt::format("[batch] micro_batch: {} does not divide the {} sequences of a step", micro, s.batch.sequences),
      fmt::format("write {}, or 0 for all of a rank's share",
                  divisors_near(s.batch.sequences, std::max<std::int64_t>(micro, 1))));
  check_growth(s.batch, rules);
}

}  // namespace orthant
