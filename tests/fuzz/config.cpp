// A configuration as a file, and as an override of a good one.
#include "core/config/config.h"

#include "tests/config/fake_plugins.h"
#include "tests/fuzz/scratch_file.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

constexpr const char* good = "[data]\nsource = \"synthetic\"\n";

void load(const std::string& text, const std::vector<std::string>& overrides) {
  const ScratchFile file(text.data(), text.size());
  try {
    load_config(file.path(), overrides, fake_plugin_keys);
  } catch (const ConfigError&) {
  }
}

int run(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  load(text, {});
  load(good, {text});
  return 0;
}

std::vector<std::string> seeds() {
  return {
      "extends = [\"base.toml\"]\n[run]\nsteps = 100 # the first\nname = 'a b'\nseed = -1\n[data]\nsource = "
      "'synthetic'\n"
      "[optimizer]\nbetas = [0.9, 0.95]\nlr = 1e-3\n[plugins.data]\nsize = 4\n",
      "[data]\nsource = 'synthetic'\n[moe]\nexperts = 8\ntop_k = 2\n[plugins]\nexpert = { size = 2, dispatch = "
      "\"all_to_all\" }\n",
      "[[run]]\na.b.'c d' = \"\"\"x\\u00e9\n\"\"\"\nx = 1979-05-27T07:32:00Z\ny = [1, [true, inf]]\nz = 0x1F\n",
      "[ = 1]",
      "\u03da = 1",
      "run.steps=10",
      "optimizer.betas=[0.9, 0.99]",
      "run.name=first"};
}

}  // namespace

const Target config = {"config", run, seeds};

}  // namespace orthant::fuzz
