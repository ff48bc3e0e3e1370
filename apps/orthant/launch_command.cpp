// orthant launch CONFIG: starts the ranks of a run, here or by mpirun, or becomes one rank of an external launcher.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/orthant/commands.h"
#include "core/base/output.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/external.h"
#include "core/command/program.h"
#include "core/command/rank_start.h"
#include "core/config/config.h"
#include "core/run/find_checkpoint.h"
#include "core/run/resumable.h"
#include "core/run/run_folder.h"
#include "core/run/run_ids.h"
#include "core/run/run_lock.h"
#include "core/session/session.h"
#include "parallel/launch/external_launcher.h"
#include "parallel/launch/hostfile.h"
#include "parallel/launch/meeting_point.h"
#include "parallel/launch/mpirun_process.h"
#include "parallel/launch/signal_scope.h"
#include "parallel/launch/start_secret.h"
#include "parallel/launch/supervisor.h"

namespace orthant {
namespace {

constexpr const char* daemon_word = "mpi-daemon";

struct LaunchOptions {
  std::string nproc = "auto";
  std::string hostfile;
  std::string resume;
  int max_restarts = 0;
  bool dry_run = false;
};

struct Needed {
  int world_size;
  std::string axes;  // "data 4, expert 2", for messages
};

// Whether the adapters of a run that begins can be exported alone is known to another program, where that is there.
void note_of_adapters(const ConfigArguments& arguments, const Config& config) {
  if (config.settings.lora.rank == 0) {
    return;
  }
  std::vector<std::string> words = {arguments.file, "--adapter"};
  for (const std::string& value : arguments.overrides) {
    words.insert(words.end(), {"--set", value});
  }
  const std::string answer = output_of_external("export", words);
  if (const std::size_t begin = answer.find("orthant export will not"); begin != std::string::npos) {
    say("orthant: note: {}", answer.substr(begin, answer.find_last_not_of('\n') + 1 - begin));
  }
}

// How many ranks the layout needs; refuses what would fail on the ranks, before any starts.
Needed check(Config& config, Ranks ranks, bool begins) {
  Needed needed{checked_ranks(config, ranks, begins), {}};
  Session session(config);
  for (const AxisSpec& axis : session.mesh().axes()) {
    needed.axes += fmt::format("{}{} {}", needed.axes.empty() ? "" : ", ", axis.name, axis.size);
  }
  return needed;
}

int parse_nproc(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 1) {
    throw ConfigError(fmt::format("--nproc {}: expected 'auto' or a number of ranks, at least 1", text));
  }
  return value;
}

// The number of ranks that the user, an external launcher and the layout agree on.
int agreed_world_size(const LaunchOptions& options, const std::optional<ExternalRank>& external, const Needed& layout,
                      const std::string& file) {
  int world_size = external ? external->world_size : layout.world_size;
  if (options.nproc != "auto") {
    const int asked = parse_nproc(options.nproc);
    if (external && asked != external->world_size) {
      throw ConfigError(fmt::format("--nproc {} contradicts {}, which started {} ranks: leave --nproc out", asked,
                                    external->launcher, external->world_size));
    }
    world_size = asked;
  }
  if (world_size != layout.world_size) {
    throw ConfigError(fmt::format(
        "{}: the layout ({}) needs {} rank{}, found {} ({}). Start {}, or change the sizes in [plugins.*]", file,
        layout.axes.empty() ? "no plugin claims an axis" : layout.axes, layout.world_size,
        layout.world_size == 1 ? "" : "s", world_size, external ? external->launcher : "--nproc", layout.world_size));
  }
  return world_size;
}

std::vector<std::string> train_command(const ConfigArguments& arguments, const std::string& resume) {
  std::vector<std::string> words = {"train", arguments.file};
  for (const std::string& value : arguments.overrides) {
    words.insert(words.end(), {"--set", value});
  }
  if (!resume.empty()) {
    words.insert(words.end(), {"--resume", resume});
  }
  return own_command(words);
}

// exported: more variables for the ranks.
int start_by_mpirun(const LaunchOptions& options, int world_size, const std::vector<std::string>& exported,
                    const std::vector<std::string>& train) {
  if (options.max_restarts > 0) {
    throw ConfigError("--max-restarts works for ranks of this machine; mpirun ends with its first failing rank");
  }
  // The hosts that the scheduler has given to this job.
  const std::filesystem::path allocated =
      options.hostfile.empty() ? allocated_hosts(process_environment()) : std::filesystem::path();
  if (!allocated.empty()) {
    say("launch: the hosts are those of {}", allocated.string());
  }
  auto command = mpirun_command(allocated.empty() ? std::filesystem::path(options.hostfile) : allocated, world_size,
                                exported, train, allocated.empty() ? Repeats::are_refused : Repeats::add_up);
  const auto more = options_for_daemons(own_command({daemon_word}), process_environment());
  command.insert(command.begin() + 1, more.begin(), more.end());
  std::string text;
  for (const std::string& word : command) {
    text += (text.empty() ? "" : " ") + shell_quoted(word);
  }
  if (options.dry_run) {
    put("{}\n", text);
    return 0;
  }
  say("launch: {}", text);
  return run_mpirun(command);
}

// Of an mpirun that was started by hand: the launcher's own (start_by_mpirun) never sees these signals.
std::string note_of_mpirun(const ExternalRank& external, const EnvironmentLookup& environment) {
  if (external.launcher != "Open MPI" || environment("ORTHANT_RUN_DIR") ||
      environment("OMPI_MCA_odls_base_sigkill_timeout")) {
    return "";
  }
  return "mpirun kills the ranks one second after SIGTERM or Ctrl-C, whatever they are saving: send it SIGUSR1 to stop "
         "them, or give it --mca odls_base_sigkill_timeout SECONDS (./launch --hostfile needs neither)";
}

// Ranks of this machine: theirs alone is the run folder, as long as one of them or this process lives.
std::unique_ptr<RunLock> claim_folder(LaunchPlan& plan, const std::string& job_id, const std::string& resume) {
  auto lock = std::make_unique<RunLock>(plan.run_directory, job_id, RunLock::Holder::children_too);
  if (!lock->missing().empty()) {
    say("launch: note: {}", lock->missing());
  }
  // Rank 0 sets an earlier run aside once the new one really begins; its logs stay with it.
  if (!goes_on_in(plan.run_directory, resume) && holds_earlier_run(plan.run_directory)) {
    plan.starting_logs = starting_logs;
  }
  return lock;
}

// After a failure: what there is to go on from.
void print_hint(const LaunchPlan& plan, const std::string& job_id) {
  if (!plan.starting_logs.empty() && ids_in(plan.run_directory).job != job_id &&
      std::filesystem::exists(plan.run_directory / "config.resolved.toml")) {
    say("launch: it ended before its first step; an earlier run stays as it was in {}", plan.run_directory.string());
  } else {
    say("launch: {}", find_resumable(plan.run_directory / "checkpoints").to_string());
  }
}

// The step of the newest checkpoint that this job wrote or goes on from, by its name; -1: there is none, or none can be
// seen just now.
std::int64_t newest_step(const LaunchPlan& plan, const std::string& job_id) {
  if (!plan.starting_logs.empty() && ids_in(plan.run_directory).job != job_id) {
    return -1;  // what is there is an earlier run's
  }
  try {
    const std::vector<NamedCheckpoint> found = checkpoints_in(plan.run_directory / "checkpoints");
    const auto newest = std::find_if(found.begin(), found.end(), [](const auto& named) { return named.finished(); });
    return newest == found.end() ? -1 : newest->step;
  } catch (const Error&) {
    return -1;
  }
}

int launch(const ConfigArguments& arguments, const LaunchOptions& options) {
  const std::optional<ExternalRank> external = find_external_rank(process_environment());
  if (!options.dry_run && !external) {
    hold_launcher_signals();  // of others, the ranks wait for each other first
  }
  Config config = load_config(arguments);
  const bool elsewhere = options.dry_run || (!external && !options.hostfile.empty());
  const std::filesystem::path run_directory =
      std::filesystem::path(config.settings.run.directory) / config.settings.run.name;
  const bool begins = starts_fresh(options.resume, run_directory / "checkpoints");
  const Needed layout = check(config, elsewhere ? Ranks::elsewhere : Ranks::processes, begins);
  if (!external && begins) {
    note_of_adapters(arguments, config);
  }
  const int world_size = agreed_world_size(options, external, layout, arguments.file);
  const RunSettings& run = config.settings.run;
  check_resume(options.resume, run_directory / "checkpoints", config);
  const std::vector<std::string> train = train_command(arguments, options.resume);

  check_communicator(config, external, world_size, !options.hostfile.empty());
  if (external && (!options.hostfile.empty() || options.max_restarts > 0)) {
    throw ConfigError(fmt::format("{} cannot be used under {}, which starts the ranks itself",
                                  options.hostfile.empty() ? "--max-restarts" : "--hostfile", external->launcher));
  }
  if (!external && (!options.hostfile.empty() || run.communicator == "mpi")) {
    std::vector<std::string> exported = {"ORTHANT_RUN_DIR=" + run_directory.string()};
    if (run.communicator != "mpi") {
      // By name: everybody on this machine can read a command line.
      for (const auto& [name, value] : StartSecret(process_environment()).variables()) {
        exported.push_back(name);
        setenv(name.c_str(), value.c_str(), 1);
      }
      const std::string host = read_hostfile(options.hostfile).front().name;
      exported.push_back("ORTHANT_RENDEZVOUS=" + meeting_point_on(host, process_environment()));
    }
    return start_by_mpirun(options, world_size, exported, train);
  }

  LaunchPlan plan;
  plan.command = train;
  plan.restart_command = train;  // rank 0 sees what this job has done already, and goes on with that
  plan.run_directory = run_directory;
  plan.max_restarts = options.max_restarts;
  plan.ranks_ask_for_signals = true;
  // Ranks of an external launcher start at their own pace: rank 0 makes room, once all of them are there.
  plan.append_logs = goes_on_in(run_directory, options.resume) || external.has_value();
  RankStart start(plan, run, external, world_size, run_directory, options.dry_run);
  if (plan.first_rank == 0) {
    say("launch: {}; run folder {}", start.describe(), run_directory.string());
  }
  if (options.dry_run) {
    put("{}", describe(plan));
    return 0;
  }
  if (external && plan.first_rank == 0) {
    if (const std::string note = note_of_mpirun(*external, process_environment()); !note.empty()) {
      say("launch: note: {}", note);
    }
  }
  const std::string job_id = external ? "" : new_id();
  plan.environment.emplace_back("ORTHANT_JOB_ID", job_id);  // in no rank that another launcher started
  const std::unique_ptr<RunLock> lock = external ? nullptr : claim_folder(plan, job_id, options.resume);
  start.meet();
  hold_launcher_signals();
  plan.newest_checkpoint = [&plan, job_id] { return newest_step(plan, job_id); };
  const int code = supervise(plan);
  if (code != static_cast<int>(ExitCode::stopped_resumable)) {  // else a second signal of one request may come yet
    release_launcher_signals();                                 // a hint reads whole checkpoints
  }
  const bool failed = code != static_cast<int>(ExitCode::ok) && code != static_cast<int>(ExitCode::stopped_resumable) &&
                      code != static_cast<int>(ExitCode::bad_configuration);
  if (failed && plan.first_rank == 0) {
    print_hint(plan, job_id);
  }
  return code;
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_code) {
  CLI::App* daemon = app.add_subcommand(daemon_word, "")->group("")->prefix_command();  // for mpirun, not for users
  daemon->callback([daemon] { become_deaf_daemon(daemon->remaining()); });
  CLI::App* command = app.add_subcommand("launch", "Train on several ranks: start, watch and restart them");
  command->footer(
      "Under torchrun, mpirun or srun it becomes one of their ranks.\n"
      "Exit codes: 0; the first failing rank's own code; 128+signal; 78 bad configuration; 75 stopped but resumable.");
  auto options = std::make_shared<LaunchOptions>();
  command->add_option("--nproc", options->nproc, "Ranks to start; auto: what the layout needs")->type_name("N|auto");
  command->add_option("--hostfile", options->hostfile, "Machines ('host slots=N' lines), started by mpirun")
      ->check(not_empty)
      ->type_name("FILE");
  command
      ->add_option("--max-restarts", options->max_restarts,
                   "After a failure start again, resuming, at most K times without progress")
      ->check(CLI::Range(0, 1 << 30))
      ->type_name("K");
  command->add_flag("--dry-run", options->dry_run, "Print what would be run, and start nothing");
  command
      ->add_option(
          "--resume", options->resume,
          "Go on from the newest checkpoint (auto), from a given one, or from that where the run has none (auto:PATH)")
      ->check(not_empty)
      ->type_name("auto|PATH|auto:PATH");
  auto arguments = add_config_arguments(*command);
  command->callback([arguments, options, &exit_code] { exit_code = launch(*arguments, *options); });
}

}  // namespace orthant
