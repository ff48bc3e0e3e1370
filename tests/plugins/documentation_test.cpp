// The reference of the plugins' keys is what they declare.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/config/keys_text.h"
#include "core/modules/module.h"
#include "tests/support/paths.h"
#include "tests/support/run_supervisor.h"

namespace orthant::documentation_test {
namespace {

TEST(Documentation, HasTheKeysOfThePlugins) {
  const std::string text = launch_test::read_file(paths::source("docs/reference/configuration.md"));
  for (const char* name : {"data", "expert", "tensor", "sequence", "pipeline"}) {
    std::string table = std::string("### `[plugins.") + name +
                        "]`\n\n| key | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n";
    for (const KeySpec& key : plugin_keys(name, "")) {
      table += key_row(key);
    }
    EXPECT_THAT(text, testing::HasSubstr(table + "\n"));
  }
}

}  // namespace
}  // namespace orthant::documentation_test
