// Imports into a folder that is gone with the test.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "apps/pretrained/import.h"
#include "core/session/session.h"
#include "tests/support/program.h"

namespace orthant::import_test {

class Folder {
 public:
  std::filesystem::path operator/(const std::string& name) const { return folder_.path() / name; }

 private:
  launch_test::TemporaryFolder folder_;
};

inline ImportResult import_into(const std::filesystem::path& run, const std::filesystem::path& source,
                                std::vector<std::string> left_out = {}) {
  return import_model({.source = source, .output = run, .left_out = std::move(left_out)}, keys_of_plugin);
}

inline Config config_of(const std::filesystem::path& run) {
  return load_config((run / "config.resolved.toml").string(), {}, keys_of_plugin);
}

}  // namespace orthant::import_test
