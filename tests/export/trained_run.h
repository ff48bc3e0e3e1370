// A run folder made in this process: a small model trained for some steps, with its last checkpoint.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/config/print.h"
#include "core/data/source.h"
#include "core/run/saving.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/local/thread_world.h"
#include "tests/support/paths.h"

namespace orthant::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "orthant_export_XXXXXX").string();
    require(mkdtemp(pattern.data()) != nullptr, "cannot make {}", pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Mixtral's shape: experts in every block, with rotary positions, RMSNorm, SwiGLU and two kv heads for four heads.
inline const std::string mixtral_toml = R"(
[data]
path = ["text.txt"]
sequence_length = 24
validation_sequences = 8
[batch]
sequences = 4
[model]
layers = 2
d_model = 32
heads = 4
kv_heads = 2
d_ff = 56
activation = "swiglu"
norm_eps = 2e-5
rope_theta = 5000
[moe]
experts = 4
top_k = 2
d_expert = 40
aux_loss = 0.03
[optimizer]
lr = 3e-3
)";

// Two ranks that hold two experts each.
inline const std::string two_ranks = "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n";

// What a trained model is, apart from its files.
struct Trained {
  Config config;
  std::map<std::string, std::vector<float>> weights;  // gathered
  double validation_loss = 0;
};

inline void train_rank(Trained& trained, const std::filesystem::path& run, Communicator& communicator,
                       std::mutex& mutex) {
  const std::unique_ptr<Device> device = make_device("cpu", 1);
  const std::unique_ptr<Stream> stream = device->make_main_stream();
  const std::unique_ptr<BatchSource> source = make_batch_source(trained.config.settings);
  Session session(trained.config);
  session.plan(communicator.rank(), &communicator, device.get());
  Trainer trainer(session.plan(), *stream, *source);
  const std::int64_t steps = trained.config.settings.run.steps;
  for (std::int64_t step = 0; step < steps; ++step) {
    trainer.step(step);
  }
  const double loss = trainer.validate();
  save_checkpoint(run / "checkpoints", steps, session.plan(), trainer.parameters(), {},
                  {communicator, session.mesh().world_group("save")}, *stream);
  const std::lock_guard lock(mutex);
  if (communicator.rank() == 0) {
    trained.validation_loss = loss;
  }
  for (const auto& group : trainer.parameters().groups()) {
    for (const Param& p : group->params) {
      require(p.elements() == p.spec.global.elements(), "{} is cut into slices: not in these layouts", p.spec.name);
      std::vector<float>& values = trained.weights[p.spec.name];
      values.resize(p.elements());
      stream->download(values.data(), group->master.slice(p.begin, {p.elements()}));
    }
  }
}

// Trains `toml` (with overrides) and leaves the folder `run` as a training run does.
inline Trained train_into(const std::filesystem::path& run, const std::string& toml,
                          const std::vector<std::string>& overrides) {
  const std::filesystem::path file = run.parent_path() / "config.toml";
  write_file(file, toml);
  std::filesystem::copy_file(paths::source("LICENSE"), run.parent_path() / "text.txt",
                             std::filesystem::copy_options::overwrite_existing);
  Trained trained{.config = load_config(file.string(), overrides, keys_of_plugin, kinds_of_plugin), .weights = {}};
  std::mutex mutex;
  run_threads(check_layout(trained.config),
              [&](Communicator& communicator) { train_rank(trained, run, communicator, mutex); });
  write_file(run / "config.resolved.toml", resolved_toml(trained.config));
  return trained;
}

}  // namespace orthant::test
