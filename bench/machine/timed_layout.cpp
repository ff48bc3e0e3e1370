#include "bench/machine/timed_layout.h"

#include <orthant/error.h>

#include <algorithm>
#include <fstream>

#include "bench/study/point_run.h"
#include "core/command/program.h"
#include "parallel/launch/child_process.h"

namespace orthant::machine {
namespace {

// Synthetic text, nothing learnt, nothing written but the log of steps.
constexpr const char* timed_settings = R"([run]
name = "timed"
log_every = 1
validate_every = 0
checkpoint_every = 0
threads = 1
routing_metrics = false

[data]
source = "synthetic"

[model]
layers = 1
d_model = 16
heads = 4
kv_heads = 4
d_ff = 32
vocab_size = 64
activation = "swiglu"
norm = "rmsnorm"
positions = "rotary"

[moe]
experts = 0

[optimizer]
lr = 1e-9
min_lr = 0
warmup_steps = 0
)";

}  // namespace

double median_step_seconds(const TimedLayout& layout, const std::filesystem::path& folder) {
  const std::filesystem::path config = folder / "timed.toml", log = folder / "timed.log";
  {
    std::ofstream file(config);
    file << timed_settings;
    file.close();
    require(file.good(), "{}: cannot be written", config.string());
  }
  std::filesystem::remove_all(folder / "runs");
  std::vector<std::string> command = {main_program().string(), "launch", config.string()};
  std::vector<std::string> set = layout.set;
  set.insert(set.end(), {"run.communicator=" + layout.communicator, "run.device=" + layout.device,
                         fmt::format("run.steps={}", layout.steps), "run.directory=" + (folder / "runs").string()});
  for (const std::string& text : set) {
    command.insert(command.end(), {"--set", text});
  }
  std::filesystem::remove(log);
  ChildProcess run(command, log);
  const int code = run.wait().exit_code();
  require(code == 0, "a layout that was timed ended with code {}:\n{}", code, end_of_log(log));
  const std::vector<double> seconds = step_seconds_of(folder / "runs" / "timed", std::max(2, layout.steps / 4));
  require(!seconds.empty(), "a layout that was timed left no steps:\n{}", end_of_log(log));
  return median(seconds);
}

double empty_step_seconds(const MeasureOptions& options, const std::filesystem::path& folder) {
  return median_step_seconds({{"data.sequence_length=16", fmt::format("batch.sequences={}", options.ranks),
                               fmt::format("plugins.data.size={}", options.ranks)},
                              options.communicator,
                              options.device,
                              options.quick ? 30 : 100},
                             folder);
}

}  // namespace orthant::machine
