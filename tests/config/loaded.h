// Configurations that are written as text, loaded.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/config/config.h"
#include "tests/config/fake_plugins.h"
#include "tests/config/temporary_folder.h"

namespace orthant::load_test {

inline const std::string synthetic = "[data]\nsource = \"synthetic\"\n";

class Load : public testing::Test {
 protected:
  Config load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return load_config(folder_.write("main.toml", text), overrides, fake_plugin_keys);
  }
  TemporaryFolder folder_;
};

}  // namespace orthant::load_test
