#include "core/run/resumed.h"

#include <fmt/ranges.h>

#include <charconv>

#include "core/base/output.h"
#include "core/run/remembered_settings.h"

namespace orthant {

std::int64_t number_in(const CheckpointReader& reader, const std::string& key) {
  const auto found = reader.state().find(key);
  std::int64_t value = -1;
  if (found != reader.state().end()) {
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  }
  require(value >= 0, "the checkpoint of step {} does not say its '{}'", reader.step(), key);
  return value;
}

void say_resumed(const std::filesystem::path& from, const CheckpointReader& reader) {
  put("resumed from {} after step {}\n", from.string(), number_in(reader, "step"));
  const auto named = named_checkpoint((from / "").lexically_normal().parent_path());
  if (named && named->step != reader.step()) {
    say("orthant: warning: {} was renamed: its manifest is of step {}", from.string(), reader.step());
  }
}

void warn_of_changed_settings(const CheckpointReader& reader, const Config& config) {
  const auto remembered = reader.state().find("settings");
  if (remembered != reader.state().end()) {
    const std::vector<std::string> changed = changed_settings(config, remembered->second);
    if (!changed.empty()) {
      say("orthant: warning: settings other than the checkpoint's: {}", fmt::join(changed, "; "));
    }
  }
}

void sync_run_folder(std::filesystem::path folder) {
  for (int i = 0; i < 3; ++i) {
    Disk().sync_folder(folder.empty() ? "." : folder);
    folder = folder.parent_path();
  }
}

}  // namespace orthant
