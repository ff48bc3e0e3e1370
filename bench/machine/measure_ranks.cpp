#include "bench/machine/measure_ranks.h"

#include <orthant/device.h>
#include <orthant/error.h>
#include <unistd.h>

#include <fstream>
#include <thread>
#include <vector>

#include "bench/machine/measure_rank.h"
#include "bench/machine/timed_layout.h"
#include "bench/study/point_run.h"
#include "core/base/text_file.h"
#include "core/command/program.h"
#include "core/command/rank_start.h"
#include "core/run/rank.h"
#include "parallel/launch/child_process.h"
#include "parallel/launch/hostfile.h"
#include "parallel/launch/supervisor.h"

namespace orthant::machine {
namespace {

constexpr double timeout_seconds = 60;

double machine_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      const std::size_t begin = line.find(": ");
      return begin == std::string::npos ? "" : line.substr(begin + 2);
    }
  }
  return "";
}

RankEnvironment own_rank() {
  if (const std::optional<RankEnvironment> rank = rank_environment()) {
    return *rank;
  }
  RankEnvironment rank;
  if (const std::optional<ExternalRank> external = find_external_rank(process_environment())) {
    rank.rank = external->rank;
    rank.world_size = external->world_size;
  }
  return rank;
}

void start_here(const MeasureOptions& options, const std::vector<std::string>& command,
                const std::filesystem::path& folder) {
  LaunchPlan plan;
  plan.command = command;
  plan.restart_command = command;
  plan.run_directory = folder;
  plan.plain_output = true;
  RunSettings run;
  run.communicator = options.communicator;
  run.device = options.device;
  RankStart start(plan, run, std::nullopt, options.ranks, folder, false);
  start.meet();
  const int code = supervise(plan);
  require(code == 0, "the ranks that measure ended with code {}:\n{}", code,
          end_of_log(folder / "logs" / "rank_0.log"));
}

void start_by_mpirun(const MeasureOptions& options, const std::vector<std::string>& command,
                     const std::filesystem::path& folder) {
  const std::filesystem::path log = folder / "mpirun.log";
  std::vector<std::string> words = mpirun_command({}, options.ranks, {}, command);
  words.insert(words.begin(), "/usr/bin/env");  // a child is started by its path
  ChildProcess child(words, log);
  const int code = child.wait().exit_code();
  require(code == 0, "the ranks that measure ended with code {}:\n{}", code, end_of_log(log));
}

}  // namespace

Measured measure_ranks(const MeasureOptions& options, const std::filesystem::path& folder) {
  const std::filesystem::path result = folder / "measured.json";
  std::vector<std::string> command = {
      main_program().string(), "bench",    rank_word,     "--result", result, "--communicator",
      options.communicator,    "--device", options.device};
  if (options.quick) {
    command.emplace_back("--quick");
  }
  std::filesystem::remove(result);
  options.communicator == "mpi" && options.ranks > 1 ? start_by_mpirun(options, command, folder)
                                                     : start_here(options, command, folder);
  const std::optional<std::string> text = read_text_file(result);
  require(text.has_value(), "rank 0 has ended, and '{}' is not there", result.string());
  Measured measured = from_json(*text);
  measured.cores = static_cast<int>(std::thread::hardware_concurrency());
  measured.processor = processor_name();
  if (measured.device == "cpu") {
    measured.memory_bytes = machine_memory();
  }
  measured.step_seconds = empty_step_seconds(options, folder);
  return measured;
}

void measure_as_rank(const MeasureOptions& options, const std::filesystem::path& result) {
  Config config;
  config.settings.run.communicator = options.communicator;
  config.settings.run.device = options.device;
  config.settings.run.timeout_seconds = timeout_seconds;
  with_communicator(config, own_rank(), [&](Communicator& communicator) {
    const std::unique_ptr<Device> device = make_device(options.device, 1);
    Measured measured = measure_rank(communicator, *device, options.quick);
    if (communicator.rank() == 0) {
      std::ofstream file(result);
      file << to_json(measured);
      file.close();
      require(file.good(), "{}: cannot be written", result.string());
    }
  });
}

}  // namespace orthant::machine
