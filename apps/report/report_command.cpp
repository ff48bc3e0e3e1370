// orthant report RUN... [-o FILE], orthant report STUDY: one self-contained HTML page.
#include <fmt/format.h>
#include <orthant/error.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/report/report.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/data/write_file.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::vector<fs::path> folders;
  fs::path output;
};

void write_pages(const ReportOptions& options) {
  std::vector<fs::path> studies;
  for (const fs::path& folder : options.folders) {
    if (fs::exists(folder / "study.json")) {
      studies.push_back(folder);
    }
  }
  if (!studies.empty()) {
    if (options.folders.size() > 1) {
      throw ConfigError("'" + studies[0].string() + "' is a study's folder: report it by itself");
    }
    if (!options.output.empty()) {
      throw ConfigError("a study's page is report.html in its folder: leave out --output");
    }
    write_study_report(studies[0]);
    put("{}\n{}\n", (studies[0] / "report.html").string(), (studies[0] / "study.svg").string());
    return;
  }
  fs::path page = options.output;
  if (page.empty()) {
    page = options.folders.size() == 1 ? options.folders[0] / "report.html" : fs::path("report.html");
  }
  if (!options.output.empty()) {
    check_output_file(page);  // else a folder that is no run's is refused as such
  }
  check_replaced(page, "<!DOCTYPE html>", "page of this program");
  write_run_report(options.folders, page);
  put("{}\n", page.string());
}

}  // namespace

void add_report_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("report");
  add_examples(*command, "  orthant report runs/a runs/b -o compared.html");
  auto options = std::make_shared<ReportOptions>();
  command->add_option("RUN", options->folders, "Folders of runs, or the folder of one study")
      ->required()
      ->check(not_empty);
  command
      ->add_option("-o,--output", options->output,
                   "The page to write (default: report.html, in the run's folder where there is one run)")
      ->check(not_empty);
  command->callback([options, &exit_code] {
    write_pages(*options);
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
