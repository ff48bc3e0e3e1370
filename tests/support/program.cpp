#include "tests/support/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/checkpoint/checkpoint.h"
#include "tests/support/paths.h"

namespace orthant::run_test {

namespace fs = std::filesystem;

namespace {

// Words with some structure, so that there is something to learn; 900 bytes: an epoch is a few steps.
std::string small_text() {
  std::string text;
  for (int i = 0; text.size() < 900; ++i) {
    text += fmt::format("line {} says {} and {}\n", i, i * i % 17, i % 5 == 0 ? "stops" : "goes on");
  }
  return text;
}

}  // namespace

std::string tiny_config(Layout layout) {
  return fmt::format(
      "[run]\nname = \"r\"\ndirectory = \"runs\"\nsteps = 8\nlog_every = 1\ncheckpoint_every = 4\nkeep = 9\n"
      "timeout_seconds = 20\n"
      "[data]\nsource = \"text\"\npath = [\"text.txt\"]\nsequence_length = 16\n"
      "[batch]\nsequences = 4\n"
      "[model]\nlayers = 2\nd_model = 16\nheads = 2\ndropout = 0.1\n"
      "[moe]\nexperts = 4\ntop_k = 2\nrouter = \"gshard\"\ncapacity_factor = 1.25\njitter = 0.01\n"
      "[plugins.data]\nsize = {}\n[plugins.expert]\nsize = {}\n",
      layout.data, layout.expert);
}

ProgramFolder::ProgramFolder() {
  write("text.txt", small_text());
}

fs::path ProgramFolder::checkpoint(int step, const std::string& name) const {
  return checkpoint_folder(run(name) / "checkpoints", step);
}

void ProgramFolder::write(const std::string& name, const std::string& text) const {
  fs::create_directories(path(name).parent_path());
  std::ofstream(path(name), std::ios::binary) << text;
}

Result ProgramFolder::orthant(const std::vector<std::string>& words,
                              const std::vector<std::string>& environment) const {
  std::vector<std::string> all = {paths::program()};
  all.insert(all.end(), words.begin(), words.end());
  return command(all, environment);
}

Result ProgramFolder::command(const std::vector<std::string>& words,
                              const std::vector<std::string>& environment) const {
  const auto running = start(words, environment);
  const int code = running->wait();
  return {code, running->output(), running->error()};
}

std::unique_ptr<launch_test::Running> ProgramFolder::start(const std::vector<std::string>& words,
                                                           const std::vector<std::string>& environment) const {
  return std::make_unique<launch_test::Running>(folder_.path(), [&] {
    // Whoever runs the tests may itself be a rank of something.
    for (const char* name : {"ORTHANT_RANK", "ORTHANT_PLUGIN_PATH", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
      unsetenv(name);
    }
    for (const std::string& variable : environment) {
      putenv(const_cast<char*>(variable.c_str()));
    }
    fs::current_path(folder_.path());
    std::vector<char*> argv;
    for (const std::string& word : words) {
      argv.push_back(const_cast<char*>(word.c_str()));
    }
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    return 127;
  });
}

std::vector<double> ProgramFolder::losses(const std::string& name) const {
  std::vector<double> found;
  for (const std::string& line : lines_of(run(name) / "metrics.jsonl")) {
    found.push_back(nlohmann::json::parse(line).at("loss").get<double>());
  }
  return found;
}

std::string why_no_mpirun() {
#if defined(__SANITIZE_THREAD__)
  return "ThreadSanitizer does not understand MPI's own threads";
#else
  if (!fs::exists(paths::plugin("liborthant_communicator_mpi.so"))) {
    return "MPI was not found when this was configured";
  }
  return std::system("command -v mpirun >/dev/null 2>&1") == 0 ? "" : "mpirun is not installed";
#endif
}

std::vector<std::string> with_set(std::vector<std::string> words, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    words.insert(words.end(), {"--set", value});
  }
  return words;
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::map<int, pid_t> ranks_of(pid_t launcher) {
  std::map<int, pid_t> ranks;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    // After the parenthesis that closes the program's name: state, parent.
    const std::string stat = launch_test::read_file(entry.path() / "stat");
    const std::size_t closed = stat.rfind(')');
    std::istringstream fields(closed == std::string::npos ? "" : stat.substr(closed + 1));
    std::string state;
    pid_t parent = 0;
    if (!(fields >> state >> parent) || parent != launcher) {
      continue;
    }
    const std::string environment = '\0' + launch_test::read_file(entry.path() / "environ");
    const std::string key = std::string(1, '\0') + "ORTHANT_RANK=";
    const std::size_t at = environment.find(key);
    if (at != std::string::npos) {
      ranks[std::stoi(environment.substr(at + key.size()))] = std::stoi(name);
    }
  }
  return ranks;
}

std::map<std::string, std::vector<std::byte>> gathered(const fs::path& checkpoint) {
  const CheckpointReader reader(checkpoint);
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const std::string& name : reader.names()) {
    const CheckpointReader::TensorInfo info = reader.info(name);
    std::vector<std::int64_t> size;
    for (int i = 0; i < info.shape.rank(); ++i) {
      size.push_back(info.shape[i]);
    }
    std::vector<std::byte>& bytes = tensors[name];
    bytes.resize(static_cast<std::size_t>(info.shape.elements()) * sizeof(float));
    reader.read(name, std::vector<std::int64_t>(size.size(), 0), size, bytes.data());
  }
  return tensors;
}

std::vector<std::string> differences(const fs::path& a, const fs::path& b) {
  const auto first = gathered(a), second = gathered(b);
  std::vector<std::string> names;
  for (const auto& [name, bytes] : first) {
    const auto other = second.find(name);
    if (other == second.end() || other->second != bytes) {
      names.push_back(name);
    }
  }
  for (const auto& [name, bytes] : second) {
    if (!first.contains(name)) {
      names.push_back(name);
    }
  }
  if (first.empty()) {
    names.push_back("(the first checkpoint is empty)");
  }
  return names;
}

std::vector<std::string> shared_memory_left() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find("orthant") != std::string::npos) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace orthant::run_test
