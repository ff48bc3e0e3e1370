// orthant bench tables [NAME...]: the tables that the field began with, by the model, beside the published numbers.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "bench/command/bench_parts.h"
#include "bench/tables/tables.h"
#include "core/base/output.h"

namespace orthant {

void add_tables_command(CLI::App& bench, int& exit_code) {
  CLI::App* command = bench.add_subcommand("tables", "Known tables of the field by the model of time and memory");
  auto wanted = std::make_shared<std::vector<std::string>>();
  auto places = std::make_shared<tables::Places>();
  command->add_option("NAME", *wanted, "Tables; all, else")->check(CLI::IsMember(tables::names()));
  command->add_option("--data", places->data, "The folder of the published runs")->capture_default_str();
  command->add_option("--machines", places->machines, "The folder of the machine files")->capture_default_str();
  command->callback([wanted, places, &exit_code] {
    bool first = true;
    for (const std::string& name : wanted->empty() ? tables::names() : *wanted) {
      put("{}{}", first ? "" : "\n", tables::markdown_of(tables::make(name, *places)));
      first = false;
    }
    exit_code = 0;
  });
}

}  // namespace orthant
