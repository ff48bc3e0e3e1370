#include "core/checkpoint/model_folder.h"

namespace orthant {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& folder) {
  std::error_code unreadable;
  return fs::exists(folder / "manifest.json", unreadable);
}

fs::path run_of(const fs::path& checkpoint) {
  return fs::absolute(checkpoint / "").lexically_normal().parent_path().parent_path().parent_path();
}

fs::path named_run(const fs::path& run_or_checkpoint) {
  return is_checkpoint(run_or_checkpoint) ? run_of(run_or_checkpoint)
                                          : (run_or_checkpoint / "").lexically_normal().parent_path();
}

bool is_published(const fs::path& folder) {
  std::error_code unreadable;
  return fs::exists(folder / "config.json", unreadable) && !fs::exists(folder / "config.resolved.toml", unreadable);
}

std::string hint_of_published(const fs::path& folder) {
  return is_published(folder) ? ". It is a published model's folder: `orthant import` makes a run of it" : "";
}

}  // namespace orthant
