// orthant bench step CONFIG: whole training steps of one rank, timed. With --serve a driver decides when (the protocol
// is in bench/peers/README.md); with --profile the share of each operation; with --why, of any layout, what stands
// between a step and the rate of a large product.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/command/bench_parts.h"
#include "bench/command/bench_why.h"
#include "bench/command/profiling_stream.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/data/source.h"
#include "core/run/loaded_teacher.h"
#include "core/run/run_numbers.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/local/local_communicator.h"
#include "parallel/local/segment.h"

namespace orthant {
namespace {

struct BenchOptions {
  int steps = 10;
  int warmup = 2;
  bool serve = false;
  bool profile = false;
  bool why = false;
  bool json = false;
};

// One rank in this process, one step after another.
class Steps {
 public:
  Steps(const Config& config, bool profile)
      : device_(make_device(config.settings.run.device, static_cast<int>(config.settings.run.threads),
                            config.settings.run.deterministic)),
        session_(config),
        segment_(LocalSegment::create(1)),
        communicator_(make_local_communicator(segment_, 0, config.settings.run.timeout_seconds)),
        source_(make_batch_source(config.settings)),
        log_every_(config.settings.run.log_every),
        step_(first_largest_step(config.settings.batch)) {  // where the batch grows, its last size is timed
    if (session_.world_size() != 1) {
      throw ConfigError(
          fmt::format("the layout has {} ranks, and bench step measures one: set the sizes in [plugins.*] to 1 "
                      "(--set plugins.data.size=1), or leave these tables out",
                      session_.world_size()));
    }
    stream_ = device_->make_main_stream();
    if (profile) {
      auto profiling = std::make_unique<ProfilingStream>(std::move(stream_));
      profiler_ = profiling.get();
      stream_ = std::move(profiling);
    }
    session_.plan(0, communicator_.get(), device_.get());
    teacher_ = loaded_teacher(config, *communicator_, *device_, *stream_);
    trainer_ = std::make_unique<Trainer>(session_.plan(), *stream_, *source_, teacher_.get());
  }

  double run() {
    const auto begin = std::chrono::steady_clock::now();
    // As a run does: with run.log_every = 1 the routing of every step is measured. But each step is timed by itself,
    // and so its report is waited for, where a run on one GPU would begin the next step first.
    tokens_ = trainer_->step(step_, (step_ + 1) % log_every_ == 0).tokens;
    ++step_;
    stream_->synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::int64_t tokens() const { return tokens_; }
  ProfilingStream* profiler() const { return profiler_; }

 private:
  std::unique_ptr<Device> device_;
  Session session_;
  std::shared_ptr<LocalSegment> segment_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<BatchSource> source_;
  const std::int64_t log_every_;
  std::unique_ptr<Stream> stream_;
  ProfilingStream* profiler_ = nullptr;  // stream_, where it profiles
  std::unique_ptr<Teacher> teacher_;     // null: none
  std::unique_ptr<Trainer> trainer_;
  std::int64_t step_, tokens_ = 0;
};

void serve(Steps& steps) {
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    int count = 0;
    const std::string word = "step ";
    const char* end = line.data() + line.size();
    nlohmann::ordered_json answer;
    if (line.starts_with(word) && std::from_chars(line.data() + word.size(), end, count).ptr == end && count > 0) {
      std::vector<double> seconds;
      for (int i = 0; i < count; ++i) {
        seconds.push_back(steps.run());
      }
      answer = {{"name", "Orthant"}, {"tokens", steps.tokens()}, {"seconds", seconds}};
    } else {
      answer = {{"error", "expected: step N, or quit; got: " + line}};
    }
    put("{}\n", answer.dump());
    std::fflush(stdout);
  }
}

void print_profile(const ProfilingStream& profiler, int steps, double total) {
  std::vector<std::pair<std::string, ProfilingStream::Entry>> rows(profiler.entries().begin(),
                                                                   profiler.entries().end());
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::size_t width = std::string_view("(outside operations)").size();
  for (const auto& [name, entry] : rows) {
    width = std::max(width, name.size());
  }
  double covered = 0;
  put("{:<{}} {:>10} {:>8} {:>12}\n", "operation", width, "ms a step", "share", "calls a step");
  for (const auto& [name, entry] : rows) {
    covered += entry.seconds;
    put("{:<{}} {:>10.2f} {:>7.1f}% {:>12.1f}\n", name, width, 1e3 * entry.seconds / steps, 100 * entry.seconds / total,
        static_cast<double>(entry.calls) / steps);
  }
  put("{:<{}} {:>10.2f} {:>7.1f}%\n", "(outside operations)", width, 1e3 * (total - covered) / steps,
      100 * (total - covered) / total);
}

void print_why(const Config& config, int ranks, const BenchOptions& options) {
  StepFloor floor;
  const StepCauses causes = why_a_step_takes(config, ranks, options.warmup, options.steps, floor);
  if (options.json) {
    return put("{}", to_json(causes));
  }
  put("{} steps, ranks {}: {:.1f} GFLOP/s in a large product, {:.1f} GB/s in a large copy, of each rank\n",
      options.steps, ranks, 1e-9 * floor.flops_per_second, 1e-9 * floor.bytes_per_second);
  put("{}", text_of(causes));
}

void time_steps(const Config& config, const BenchOptions& options) {
  Steps steps(config, options.profile);
  if (options.serve) {
    return serve(steps);
  }
  for (int i = 0; i < options.warmup; ++i) {
    steps.run();
  }
  if (steps.profiler() != nullptr) {
    steps.profiler()->clear();
  }
  std::vector<double> seconds;
  double total = 0;
  for (int i = 0; i < options.steps; ++i) {
    seconds.push_back(steps.run());
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const std::optional<double> mfu = model_flops_utilization(config.settings, steps.tokens(), median, 1);
  put("{} steps of {} tokens: median {:.1f} ms, {:.0f} tokens/s (min {:.1f}, max {:.1f} ms){}\n", options.steps,
      steps.tokens(), 1e3 * median, static_cast<double>(steps.tokens()) / median, 1e3 * seconds.front(),
      1e3 * seconds.back(), mfu.has_value() ? fmt::format(", MFU {:.1f} %", 100 * *mfu) : "");
  if (steps.profiler() != nullptr) {
    print_profile(*steps.profiler(), options.steps, total);
  }
}

int bench_step(const ConfigArguments& arguments, const BenchOptions& options) {
  Config config = load_config(arguments);
  const int ranks = checked_ranks(config, Ranks::threads);
  if (!options.why || options.profile) {
    time_steps(config, options);
  }
  if (options.why) {
    print_why(config, ranks, options);
  }
  return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench");
  add_examples(*bench,
               "  orthant bench step configs/bench_mixtral_small.toml\n"
               "  orthant bench compare runs/a runs/b");
  bench->require_subcommand(1);
  add_study_command(*bench, exit_code);
  add_bench_compare(*bench, exit_code);
  add_hindcast_command(*bench, exit_code);
  add_machine_command(*bench, exit_code);
  add_tables_command(*bench, exit_code);
  CLI::App* command = bench->add_subcommand("step", "Whole training steps of one rank");
  auto arguments = add_config_arguments(*command);
  auto options = std::make_shared<BenchOptions>();
  command->add_option("--steps", options->steps, "Steps to time")->check(CLI::Range(1, 100000));
  command->add_option("--warmup", options->warmup, "Steps before them")->check(CLI::Range(0, 100000));
  auto* serve_flag = command->add_flag("--serve", options->serve, "Read 'step N' lines, answer with JSON lines");
  auto* profile_flag =
      command
          ->add_flag("--profile", options->profile,
                     "Print the share of each operation. Each is waited for: on a GPU a step takes longer")
          ->excludes(serve_flag);
  auto* why_flag = command->add_flag("--why", options->why,
                                     "Say what stands between a step and the rate of a large product, of any layout");
  why_flag->excludes(serve_flag);
  command->add_flag("--json", options->json, "What --why says, as JSON")->needs(why_flag)->excludes(profile_flag);
  command->callback([arguments, options, &exit_code] { exit_code = bench_step(*arguments, *options); });
  add_peer_data_command(*bench, exit_code);
}

}  // namespace orthant
