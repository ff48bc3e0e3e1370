// orthant bench compare A B [--json]: two results, and whether they differ.
#include <orthant/error.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/command/bench_parts.h"
#include "bench/compare/compare_results.h"
#include "core/base/output.h"
#include "core/command/arguments.h"

namespace orthant {
namespace comparing {
namespace {

struct CompareOptions {
  std::string a, b;
  std::optional<long> warmup;
  bool json = false;
};

std::string side(const std::optional<double>& value) {
  return value ? fmt::format("{:.4f}", *value) : "open";
}

void print_table(const ComparedResults& results) {
  const auto name_of = [](const ComparedRow& row) {
    return row.unit.empty() ? row.quantity : fmt::format("{} ({})", row.quantity, row.unit);
  };
  std::size_t width = 8;
  for (const ComparedRow& row : results.rows) {
    width = std::max(width, name_of(row).size());
  }
  put("{:<{}}  {:>10}  {:>10}  {:>7}  {:<18}  {}\n", "quantity", width, "before", "after", "ratio", "95 % interval",
      "verdict");
  for (const ComparedRow& row : results.rows) {
    const TwoSamples& n = row.numbers;
    const bool known = n.verdict != Verdict::noise_unknown;
    put("{:<{}}  {:>10.5g}  {:>10.5g}  {:>7.4f}  {:<18}  {}\n", name_of(row), width, n.before, n.after, n.ratio,
        known ? side(n.interval.low) + " .. " + side(n.interval.high) : "-", row.verdict);
  }
  for (const std::string& note : results.notes) {
    put("{}\n", note);
  }
}

nlohmann::ordered_json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

void print_json(const CompareOptions& options, const ComparedResults& results) {
  nlohmann::ordered_json json = {{"before", options.a}, {"after", options.b}, {"kind", results.kind}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const ComparedRow& row : results.rows) {
    const TwoSamples& n = row.numbers;
    json["rows"].push_back(
        {{"quantity", row.quantity},
         {"unit", row.unit.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(row.unit)},
         {"before", number(n.before)},
         {"after", number(n.after)},
         {"ratio", number(n.ratio)},
         {"low", number(n.interval.low)},
         {"high", number(n.interval.high)},
         {"verdict", row.verdict}});
  }
  json["notes"] = results.notes;
  put("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace
}  // namespace comparing

void add_bench_compare(CLI::App& bench, int& exit_code) {
  CLI::App* command = bench.add_subcommand("compare", "Two results: what differs, noise considered");
  auto options = std::make_shared<comparing::CompareOptions>();
  command->add_option("A", options->a, "Before: a run's or study's folder, metrics.jsonl or study.json")->required();
  command->add_option("B", options->b, "After: the same of another")->required();
  command->add_option("--warmup", options->warmup, "Steps to leave out of a run's speed (default: the first tenth)")
      ->check(CLI::Range(0L, 1000000000L));
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &exit_code] {
    const ComparedResults results = compare_results(options->a, options->b, options->warmup);
    options->json ? comparing::print_json(*options, results) : comparing::print_table(results);
    exit_code = 0;
  });
}

}  // namespace orthant
