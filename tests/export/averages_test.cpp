// `export --ema` against a plain average in fp64 of the weights of each step, and read again by the import.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "apps/pretrained/export.h"
#include "apps/pretrained/import.h"
#include "core/checkpoint/safetensors.h"
#include "tests/export/trained_run.h"
#include "tests/support/experiment.h"

namespace orthant::test::export_averages_test {
namespace {

namespace fs = std::filesystem;

TEST(ExportedAverages, AreThoseOfTheStepsWeights) {
  const TemporaryFolder folder;
  const std::string toml = mixtral_toml + "schedule = \"constant\"\nema_decay = 0.15\n" + two_ranks;
  std::map<std::string, std::vector<double>> average;
  constexpr int steps = 4;
  for (int step = 0; step < steps; ++step) {
    const fs::path run = folder / "runs" / std::to_string(step + 1);
    const Trained trained = train_into(run, toml, {fmt::format("run.steps={}", step + 1)});
    if (step == 0) {
      Config alone = trained.config;
      alone.plugins.clear();
      OneRank rank(alone);
      for (const std::string& name : rank->names()) {
        const std::vector<float> x = rank->weight(name);
        average[name] = {x.begin(), x.end()};
      }
    }
    const double d = std::min(0.15, (1.0 + step) / (10.0 + step));
    for (auto& [name, e] : average) {
      for (std::size_t i = 0; i < e.size(); ++i) {
        e[i] = d * e[i] + (1 - d) * static_cast<double>(trained.weights.at(name)[i]);
      }
    }
  }
  const fs::path out = folder / "out";
  export_run({.run = folder / "runs/4", .output = out, .averages = true}, keys_of_plugin);
  import_model({.source = out, .output = folder / "again", .left_out = {}}, keys_of_plugin, kinds_of_plugin);
  const SafetensorsReader file(out / "model.safetensors");
  const CheckpointReader again(checkpoint_folder(folder / "again/checkpoints", 0));
  for (const auto& [name, e] : average) {
    const auto bytes = file.bytes(file.at(name));
    ASSERT_EQ(bytes.size(), e.size() * sizeof(float)) << name;
    std::vector<float> written(e.size()), imported(e.size());
    std::memcpy(written.data(), bytes.data(), bytes.size());
    const Shape shape = again.info(name).shape;
    std::vector<std::int64_t> size;
    for (int i = 0; i < shape.rank(); ++i) {
      size.push_back(shape[i]);
    }
    again.read(name, std::vector<std::int64_t>(size.size(), 0), size, imported.data());
    EXPECT_EQ(imported, written) << name;
    for (std::size_t i = 0; i < e.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(written[i]), e[i], 1e-6 * (std::abs(e[i]) + 0.01)) << name << " at " << i;
    }
  }
}

}  // namespace
}  // namespace orthant::test::export_averages_test
