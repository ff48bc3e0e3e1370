#include "apps/generate/generate_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "apps/lm/layout.h"
#include "core/base/output.h"
#include "core/base/temporary_folder.h"
#include "core/command/program.h"
#include "core/command/rank_start.h"
#include "core/run/rank.h"
#include "core/run/run_ids.h"
#include "core/session/session.h"
#include "parallel/launch/signal_scope.h"
#include "parallel/local/segment.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// What a process that starts ranks tells them: the model, which it has imported where that is a published one, and the
// descriptor of its own standard output, to which rank 0 answers without a prefix.
constexpr const char* model_variable = "ORTHANT_MODEL";
constexpr const char* answers_variable = "ORTHANT_ANSWERS";

void share_machine(GenerateOptions& o, int ranks) {
  o.threads = std::max(1, o.threads / ranks);
  o.latent_room /= ranks;
}

void check_size(const ExternalRank& external, int ranks) {
  if (external.world_size != ranks) {
    throw ConfigError(fmt::format("{}, and the layout has {} rank{}: start as many, or change the layout",
                                  external.describe(), ranks, ranks == 1 ? "" : "s"));
  }
}

void check_served(const ExternalRank& external, const std::string& communicator) {
  const std::string found = fmt::format("{}, with run.communicator = \"{}\"", external.describe(), communicator);
  if (communicator == "mpi" && !external.known_to_mpi) {
    throw ConfigError(
        fmt::format("{}: MPI knows nothing of these ranks. Start them by mpirun or srun; on one machine say "
                    "--set 'run.communicator=\"local\"'",
                    found));
  }
  if (communicator == "local" && !external.on_one_machine) {
    throw ConfigError(
        fmt::format("{}: it serves the ranks of one machine, and these are not said to be on one. Start "
                    "them by mpirun or srun, with --set 'run.communicator=\"mpi\"'",
                    found));
  }
}

// One of the ranks that mpirun, srun or torchrun has started.
RunRanks ranks_of(const ExternalRank& external) {
  return [external](const Config& config, int ranks, const std::function<void(Communicator&)>& body) {
    const RunSettings& run = config.settings.run;
    check_served(external, run.communicator);
    check_size(external, ranks);
    LaunchPlan plan;
    // The folder is everybody's: a secret of another user must not stand in the way.
    const fs::path secret_beside = temporary_folder() / fmt::format("orthant-generate-{}", geteuid());
    RankStart start(plan, run, external, ranks, secret_beside, false);
    for (const auto& [name, value] : plan.environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    RankEnvironment rank;
    rank.rank = external.rank;
    rank.world_size = ranks;
    start.meet();
    if (plan.make_segment && ranks > 1) {
      rank.local_fd = dup(plan.make_segment(ranks)->descriptor());
    }
    with_communicator(config, rank, body);
  };
}

// Its words as they were given.
std::vector<std::string> own_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  require(words.size() > 1, "cannot read this program's words from /proc/self/cmdline");
  words.erase(words.begin());
  return words;
}

// Rank 0 answers to the standard output of the process that started it. What says so ends here, for it is of this
// process alone.
void take_answers(int rank, int answers) {
  if (rank == 0) {
    if (dup2(answers, STDOUT_FILENO) < 0) {
      fail("cannot answer to descriptor {}: {}", answers, std::generic_category().message(errno));
    }
    std::signal(SIGTTOU, SIG_IGN);  // it is in the background of a terminal, which may stop those that write
  }
  close(answers);
  unsetenv(model_variable);
  unsetenv(answers_variable);
}

int start_processes(const GenerateOptions& o, const OpenedModel& model, int ranks) {
  const Config& config = model.config();
  const fs::path folder = temporary_folder() / ("orthant-generate-" + new_id());
  LaunchPlan plan;
  plan.command = own_command(own_words());
  plan.run_directory = folder;
  plan.output = STDERR_FILENO;  // answers alone go to the standard output
  RankStart start(plan, config.settings.run, std::nullopt, ranks, plan.run_directory, false);
  const int answers = dup(STDOUT_FILENO);
  plan.environment.emplace_back(model_variable, fs::absolute(model.checkpoint()).string());
  plan.environment.emplace_back(answers_variable, std::to_string(answers));
  say("generate: {} answer {}", start.describe(), o.model.string());
  const int code = supervise(plan);
  close(answers);
  if (code == 0) {  // else the report of a failed rank names its log
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  return code;
}

}  // namespace

bool speaks_for_ranks() {
  const std::optional<RankEnvironment> started = rank_environment();
  const std::optional<ExternalRank> external = find_external_rank(process_environment());
  return started ? started->rank == 0 : !external || external->rank == 0;
}

std::optional<int> arrange_ranks(GenerateOptions& o, bool processes) {
  if (o.layout.empty()) {
    if (processes) {
      throw ConfigError("--processes: there is nothing to divide among them; give --layout run, or --layout FILE");
    }
    return {};
  }
  const auto environment = process_environment();
  if (const std::optional<RankEnvironment> rank = rank_environment(); rank && environment(answers_variable)) {
    o.model = environment(model_variable).value_or(o.model.string());
    take_answers(rank->rank, std::atoi(environment(answers_variable)->c_str()));
    share_machine(o, rank->world_size);
    o.run_ranks = [rank = *rank](const Config& config, int, const std::function<void(Communicator&)>& body) {
      with_communicator(config, rank, body);
    };
    return {};
  }
  const std::optional<ExternalRank> external = find_external_rank(environment);
  if (external && external->world_size > 1) {
    if (processes) {
      throw ConfigError(
          fmt::format("--processes cannot be used under {}, which starts the ranks itself", external->launcher));
    }
    share_machine(o, std::max(1, external->local_size));
    o.run_ranks = ranks_of(*external);
    return {};
  }
  if (!processes) {
    return {};
  }
  const OpenedModel model(o.model, "generate", o.overrides, keys_of_plugin, kinds_of_plugin, o.averages);
  const std::string& communicator = model.config().settings.run.communicator;
  if (communicator == "mpi") {
    throw ConfigError(
        "--processes, with run.communicator = \"mpi\": its ranks are started by mpirun or srun. Do that, or "
        "say --set 'run.communicator=\"local\"'");
  }
  const int ranks = generation_ranks(
      for_generation(model.config(), layout_of(o.layout, model.config(), keys_of_plugin, kinds_of_plugin)));
  if (communicator == "local" && ranks > LocalSegment::max_world) {
    throw ConfigError(
        fmt::format("the layout has {} ranks; on one machine there are at most {}: make the layout smaller", ranks,
                    LocalSegment::max_world));
  }
  hold_launcher_signals();
  const int code = start_processes(o, model, ranks);
  release_launcher_signals();
  return code;
}

}  // namespace orthant
