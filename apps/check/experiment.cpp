#include "apps/check/experiment.h"

#include <unistd.h>

#include <fstream>

#include "core/base/temporary_folder.h"
#include "core/session/session.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Six blocks, every other with experts: pipelines of four stages with two chunks have eight pieces to cut. An eps above
// the rounding of gradients (see verify). Micro-batches, capacity, dropout and tied embeddings, as axes are wrong about
// them.
constexpr const char* experiment_toml = R"(
[run]
steps = 10
timeout_seconds = 20
[data]
source = "synthetic"
sequence_length = 16
validation_sequences = 4
[batch]
sequences = 8
micro_batch = 2
[model]
layers = 6
d_model = 16
heads = 4
d_ff = 16
vocab_size = 32
activation = "swiglu"
init_std = 0.2
dropout = 0.1
tie_embeddings = true
[moe]
experts = 4
every = 2
router = "topk"
top_k = 2
capacity_factor = 1.25
shared_experts = 1
aux_loss = 0.02
z_loss = 0.01
[optimizer]
lr = 0.01
eps = 1e-5
schedule = "constant"
)";

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) : path_((temporary_folder() / "orthant_check_XXXXXX.toml").string()) {
    const int handle = mkstemps(path_.data(), 5);
    require(handle >= 0, "cannot make a file in {}", temporary_folder().string());
    close(handle);
    std::ofstream(path_) << text;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

Config config_from_text(const std::string& toml, const std::vector<std::string>& overrides) {
  const TemporaryFile file(toml);
  return load_config(file.path(), overrides, keys_of_plugin, kinds_of_plugin);
}

Config conformance_experiment(const PluginUnderTest& plugin, int size, const Beside& beside) {
  std::vector<std::string> overrides;
  if (beside.stages > 0) {
    overrides.push_back(fmt::format("plugins.{}.size={}", stage_axis, beside.stages));
  }
  const auto put_data = [&] {
    if (beside.data > 0) {
      overrides.push_back(fmt::format("plugins.{}.size={}", partner_axis, beside.data));
    }
  };
  if (!beside.above) {
    put_data();
  }
  const std::string table = fmt::format("plugins.{}", plugin.name);
  overrides.push_back(fmt::format("{}.path='{}'", table, fs::absolute(plugin.file).string()));
  if (beside.above) {
    put_data();
  }
  overrides.insert(overrides.end(), plugin.overrides.begin(), plugin.overrides.end());
  if (size > 0) {
    overrides.push_back(fmt::format("{}.size={}", table, size));
  }
  return config_from_text(experiment_toml, overrides);
}

}  // namespace orthant
