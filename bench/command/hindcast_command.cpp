// orthant bench hindcast: predicted step times and peaks against published ones.
#include <orthant/error.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "bench/command/bench_parts.h"
#include "bench/hindcast/hindcast.h"
#include "core/base/output.h"
#include "core/command/arguments.h"

namespace orthant {
namespace hindcasting {
namespace {

struct HindcastOptions {
  std::string data = "bench/hindcast/data", machines = "configs/machines";
  std::string rows, pictures;
  bool fit = false, json = false;
};

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  require(file.good(), "{}: cannot be written", path.string());
}

void run(const HindcastOptions& options) {
  using namespace orthant::hindcast;
  Rows rows = options.rows.empty() ? committed_rows(options.data) : read_rows(options.rows, options.data);
  const Machines machines = machines_of(rows, options.machines);
  const std::filesystem::path factors = std::filesystem::path(options.machines) / "factors.toml";
  const Hindcast result = options.rows.empty() ? hindcast::hindcast(rows, machines)
                                               : scored(rows, machines, cost::load_factors(factors.string()));
  if (options.fit) {
    write_file(factors, fit_file(result, cost::load_factors(factors.string())));
  }
  if (!options.pictures.empty()) {
    std::filesystem::create_directories(options.pictures);
    for (const auto& [name, picture] : pictures_of(result)) {
      write_file(std::filesystem::path(options.pictures) / name, picture);
    }
  }
  put("{}", options.json ? json_of(result) : text_of(result));
}

}  // namespace
}  // namespace hindcasting

void add_hindcast_command(CLI::App& bench, int& exit_code) {
  CLI::App* command = bench.add_subcommand("hindcast", "Predicted step times and memory against published runs");
  auto options = std::make_shared<hindcasting::HindcastOptions>();
  auto* rows = command->add_option("--rows", options->rows,
                                   "Score the rows of this CSV file with the committed fit, and fit nothing");
  command->add_flag("--fit", options->fit, "Write the factors to factors.toml of the machines' folder")->excludes(rows);
  command->add_flag("--json", options->json, "Print JSON, with every row");
  command->add_option("--svg", options->pictures, "Write a picture of each source into this folder");
  command->add_option("--data", options->data, "The folder of the published runs")->capture_default_str();
  command->add_option("--machines", options->machines, "The folder of the machine files")->capture_default_str();
  command->callback([options, &exit_code] {
    hindcasting::run(*options);
    exit_code = 0;
  });
}

}  // namespace orthant
