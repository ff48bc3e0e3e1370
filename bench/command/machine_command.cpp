// orthant bench machine: the machine at hand as a machine file. orthant bench own-machine: predicted steps of its own
// ranks against measured ones.
#include <orthant/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "bench/command/bench_parts.h"
#include "bench/machine/machine_of.h"
#include "bench/machine/measure_ranks.h"
#include "bench/machine/own_machine.h"
#include "core/base/output.h"
#include "core/base/text_file.h"
#include "core/command/arguments.h"
#include "core/modules/module.h"
#include "core/run/scratch_folder.h"

namespace orthant {
namespace measuring {
namespace {

struct MachineOptions {
  machine::MeasureOptions measure;
  std::string out, raw;
  double memory_gb = 0;
};

void write_machine_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  require(file.good(), "{}: cannot be written", path.string());
}

std::string heading_of(const machine::Measured& measured) {
  char day[16] = "";
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  if (localtime_r(&now, &parts) != nullptr) {
    std::strftime(day, sizeof(day), "%Y-%m-%d", &parts);
  }
  return fmt::format(
      "# Measured by: orthant bench machine --ranks {} --communicator {}{}\n# {}, {}, {} cores. Not measured: what "
      "hides "
      "behind passes (overlap), and\n# how far predictions spread.\n",
      measured.ranks, measured.communicator, measured.device == "cpu" ? "" : " --device " + measured.device, day,
      measured.processor.empty() ? "a processor without a name" : measured.processor, measured.cores);
}

void measure(const MachineOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const ScratchFolder folder;
  machine::Measured measured = machine::measure_ranks(options.measure, folder.path());
  constexpr double giga = 1e9;
  if (options.memory_gb > 0) {
    measured.memory_bytes = options.memory_gb * giga;
  }
  require(measured.memory_bytes > 0, "how much memory a device '{}' has is not known here: give --memory GB",
          measured.device);
  const cost::Machine found = machine::machine_of(measured);
  put("{}", machine::text_of(measured, found));
  const std::string text = machine::machine_toml(found, heading_of(measured));
  if (options.out.empty()) {
    put("\n{}", text);
  } else {
    write_machine_file(options.out, text);
    put("\n'{}' is written. ", options.out);
  }
  put("It took {:.0f} s.\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

void add_measure_options(CLI::App& command, machine::MeasureOptions& options) {
  command.add_option("--communicator", options.communicator, "local, mpi or nccl")
      ->check(CLI::IsMember({"local", "mpi", "nccl"}))
      ->capture_default_str();
  command.add_option("--device", options.device, "cpu, cuda or another device")
      ->check(not_empty)
      ->capture_default_str();
  command.add_flag("--quick", options.quick, "Fewer shapes, sizes and repetitions");
}

struct OwnOptions {
  int rounds = 3;
  double seconds = 240;
  bool quick = false;
  std::string keep, from, out;
};

std::string read_file(const std::string& path) {
  const std::optional<std::string> text = read_text_file(path);
  require(text.has_value(), "{}: cannot be read", path);
  return *text;
}

// What was measured, of both kinds, in one file: measured machines by communicator, then the layouts.
void own_machine(const OwnOptions& options) {
  machine::OwnMachines machines;
  std::vector<machine::OwnRow> rows;
  if (!options.from.empty()) {
    const std::string text = read_file(options.from);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line) && line != "layouts";) {
      const machine::Measured measured = machine::from_json(line);
      machines.emplace(measured.communicator, machine::machine_of(measured));
    }
    rows = machine::rows_from_json(text.substr(text.find("\nlayouts\n") + 9));
  } else {
    const ScratchFolder folder;
    std::vector<machine::OwnLayout> layouts = machine::own_layouts();
    if (!module_exists("communicator", "mpi")) {
      say("orthant: note: there is no communicator mpi here: its layouts are left out");
      std::erase_if(layouts, [](const machine::OwnLayout& layout) { return layout.communicator == "mpi"; });
    }
    std::string kept;
    for (const char* communicator : {"local", "mpi"}) {
      if (std::any_of(layouts.begin(), layouts.end(),
                      [&](const auto& layout) { return layout.communicator == communicator; })) {
        const int cores = static_cast<int>(std::max(2u, std::thread::hardware_concurrency()));
        const machine::Measured measured =
            machine::measure_ranks({cores, communicator, "cpu", options.quick}, folder.path());
        machines.emplace(communicator, machine::machine_of(measured));
        kept += machine::to_json(measured);
      }
    }
    rows = machine::timed_rows(layouts, options.rounds, options.seconds, folder.path(), [](const machine::OwnRow& row) {
      say("round {}: {} ({}) {:.2f} ms", row.medians.size(), machine::text_of(row.layout), row.layout.communicator,
          1e3 * row.medians.back());
    });
    if (!options.keep.empty()) {
      write_machine_file(options.keep, kept + "layouts\n" + machine::to_json(rows));
    }
  }
  const machine::OwnMachines fit = machine::fitted(rows, machines);
  put("{}", machine::text_of(rows, fit));
  const machine::OwnErrors raw = machine::errors_of(rows, machines, false);
  put("held out, by what was measured alone, without a fit: mean {:.1f} %  largest {:.1f} %\n", raw.mean, raw.largest);
  for (const auto& [communicator, found] : fit) {
    const std::string text = machine::machine_toml(
        found,
        fmt::format("# Measured, and fitted to steps of own layouts, by: orthant bench own-machine\n# Ranks of {}.\n",
                    communicator));
    if (options.out.empty()) {
      put("\n{}", text);
    } else {
      write_machine_file(std::filesystem::path(options.out) / ("own-" + communicator + ".toml"), text);
    }
  }
}

}  // namespace
}  // namespace measuring

void add_machine_command(CLI::App& bench, int& exit_code) {
  CLI::App* command = bench.add_subcommand("machine", "Measure this machine, and write a machine file for the planner");
  auto options = std::make_shared<measuring::MachineOptions>();
  options->measure.ranks = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  measuring::add_measure_options(*command, options->measure);
  command->add_option("--ranks", options->measure.ranks, "Ranks of this machine; as many as it has cores, else")
      ->check(CLI::Range(1, 4096));
  command->add_option("-o,--out", options->out, "Write the machine file here; else it is printed")->type_name("FILE");
  command->add_option("--memory", options->memory_gb, "GB of one device, where it is not the machine's memory")
      ->check(CLI::Range(0.001, 1e6));
  add_examples(*command,
               "  orthant bench machine -o own.toml\n"
               "  orthant bench machine --ranks 4 --communicator mpi --quick");
  command->callback([options, &exit_code] {
    measuring::measure(*options);
    exit_code = 0;
  });

  CLI::App* own = bench.add_subcommand("own-machine", "Predicted steps of this machine's ranks against measured ones");
  auto of_own = std::make_shared<measuring::OwnOptions>();
  own->add_option("--rounds", of_own->rounds, "How often each layout is trained; the quickest counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  own->add_option("--seconds", of_own->seconds, "No round is gone on with after these; the first is whole")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  own->add_flag("--quick", of_own->quick, "Measure the machine with fewer shapes");
  auto* keep = own->add_option("--keep", of_own->keep, "Write what was measured into this file");
  own->add_option("--from", of_own->from, "Measure nothing: fit and score what --keep has written")->excludes(keep);
  own->add_option("-o,--out", of_own->out, "Write a machine file for each communicator into this folder")
      ->type_name("DIR");
  own->callback([of_own, &exit_code] {
    measuring::own_machine(*of_own);
    exit_code = 0;
  });

  CLI::App* rank = bench.add_subcommand(machine::rank_word, "")->group("");  // for measure_ranks(), not for users
  auto of_rank = std::make_shared<measuring::MachineOptions>();
  measuring::add_measure_options(*rank, of_rank->measure);
  rank->add_option("--result", of_rank->out)->required();
  rank->callback([of_rank, &exit_code] {
    machine::measure_as_rank(of_rank->measure, of_rank->out);
    exit_code = 0;
  });
}

}  // namespace orthant
