// Two runs, by their lines of metrics.
#include <fmt/ranges.h>
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <vector>

#include "apps/report/loss_unit.h"
#include "bench/compare/compare_parts.h"
#include "bench/fit/monotone_curve.h"
#include "core/base/text_file.h"
#include "core/config/toml_reader.h"

namespace orthant::comparing {
namespace {

constexpr const char* bits_per_byte_unit = "bits per byte";

struct Series {
  std::vector<double> steps, values;
};

// A key of a line of metrics, or one of an object that stands there ("validation_losses", "wiki").
struct Key {
  const char* name;
  std::string member = {};

  std::optional<double> in(const Json& line) const {
    if (member.empty()) {
      return number_at(line, name);
    }
    return line.contains(name) ? number_at(line.at(name), member.c_str()) : std::nullopt;
  }
};

struct RunLines {
  std::vector<Json> lines;

  Series of(const Key& key, double after_step) const {
    Series series;
    for (const Json& line : lines) {
      const auto value = key.in(line);
      const double step = line.at("step").get<double>();
      if (value && step > after_step) {
        series.steps.push_back(step);
        series.values.push_back(*value);
      }
    }
    return series;
  }
};

RunLines lines_of(const Input& input) {
  RunLines run;
  std::istringstream text(input.text);
  std::size_t count = 0;
  for (std::string line; std::getline(text, line);) {
    ++count;
    const bool cut = text.eof();  // a run that was killed while it wrote
    const std::string where = fmt::format("{}:{}", input.file.string(), count);
    if (line.empty() || (cut && !Json::accept(line))) {
      continue;
    }
    Json json = parsed(line, where);
    if (!json.is_object() || !number_at(json, "step")) {
      throw ConfigError(
          fmt::format("{}: a line of metrics needs the key 'step', a number from 1 on; {}", where, expected));
    }
    // A run that was resumed by other means than ours has some steps twice: the later lines count.
    while (!run.lines.empty() && run.lines.back().at("step").get<double>() >= json.at("step").get<double>()) {
      run.lines.pop_back();
    }
    run.lines.push_back(std::move(json));
  }
  if (run.lines.empty()) {
    throw ConfigError(fmt::format("{}: no line of metrics; {}", input.file.string(), expected));
  }
  return run;
}

double warm_up_step(const RunLines& run, std::optional<long> warmup) {
  if (warmup) {
    return static_cast<double>(*warmup);
  }
  const std::size_t left_out = std::max<std::size_t>(1, run.lines.size() / 10);
  return run.lines.size() > 1 ? run.lines[std::min(left_out, run.lines.size() - 1) - 1].at("step").get<double>() : 0;
}

void add_speed(const char* key, const char* lower, const char* higher, const RunLines& a, const RunLines& b,
               std::optional<long> warmup, ComparedResults& results) {
  const Series before = a.of({key}, warm_up_step(a, warmup)), after = b.of({key}, warm_up_step(b, warmup));
  if (before.values.empty() || after.values.empty()) {
    results.notes.push_back(fmt::format("{} is left out: no line after the warm-up has it in both runs", key));
    return;
  }
  const TwoSamples numbers = compare_medians(before.values, after.values, {});
  results.rows.push_back({fmt::format("{}, median", key), numbers, words(numbers.verdict, lower, higher)});
}

// The mean over the last tenth of the lines.
void add_loss(const RunLines& a, const RunLines& b, const std::string& unit, ComparedResults& results) {
  const auto last = [](Series series) {
    const std::size_t count = std::min(series.values.size(), std::max<std::size_t>(5, series.values.size() / 10));
    const auto drop = static_cast<std::ptrdiff_t>(series.values.size() - count);
    series.steps.erase(series.steps.begin(), series.steps.begin() + drop);
    series.values.erase(series.values.begin(), series.values.begin() + drop);
    return series;
  };
  const Series before = last(a.of({"loss"}, 0)), after = last(b.of({"loss"}, 0));
  if (!before.values.empty() && !after.values.empty()) {
    const bool paired = before.steps == after.steps;
    const TwoSamples numbers = compare_means(before.values, after.values, paired, {});
    results.rows.push_back({fmt::format("loss, last {} lines", after.values.size()), numbers,
                            words(numbers.verdict, "lower", "higher"), unit});
  }
}

// The noise is what a smooth fit of each curve takes away.
void add_validation(const Key& key, const RunLines& a, const RunLines& b, const std::string& unit,
                    ComparedResults& results) {
  const Series before = a.of(key, 0), after = b.of(key, 0);
  if (before.values.empty() || after.values.empty()) {
    return;
  }
  // Of the second half, where the curve is flat enough for it.
  const auto residuals = [](const Series& series) {
    std::vector<CurvePoint> points;
    const std::size_t count = series.values.size();
    for (std::size_t i = count >= 20 ? count / 2 : 0; i < count; ++i) {
      points.push_back({series.steps[i], series.values[i]});
    }
    return points.size() < 2 ? std::vector<double>{} : MonotoneCurve(points).residuals();
  };
  const std::vector<double> of_a = residuals(before), of_b = residuals(after);
  const BootstrapOptions options;
  const double ratio = after.values.back() / before.values.back();
  std::vector<double> ratios;
  Draws draws(options.seed);
  for (int i = 0; i < options.resamples && of_a.size() >= 5 && of_b.size() >= 5; ++i) {
    ratios.push_back(ratio * std::exp(of_b[draws.index(of_b.size())] - of_a[draws.index(of_a.size())]));
  }
  const TwoSamples numbers = judge(before.values.back(), after.values.back(), ratios, options,
                                   static_cast<double>(of_a.size() + of_b.size()) - 2);
  const bool in_bits = unit == bits_per_byte_unit;
  const std::string name = in_bits ? "validation_bits_per_byte" : "validation_loss";
  results.rows.push_back({key.member.empty() ? name + ", last" : name + ", " + key.member + ", last", numbers,
                          words(numbers.verdict, "lower", "higher"), in_bits ? "" : unit});
}

// The names of the validation sets, those of the last line that has some.
std::vector<std::string> sets_of(const RunLines& run) {
  std::vector<std::string> names;
  for (auto line = run.lines.rbegin(); names.empty() && line != run.lines.rend(); ++line) {
    if (line->contains("validation_losses") && line->at("validation_losses").is_object()) {
      for (const auto& [name, loss] : line->at("validation_losses").items()) {
        names.push_back(name);
      }
    }
  }
  return names;
}

// By its own name a set is the same text in both runs only where they were given the same.
void add_sets(const Input& a, const Input& b, const RunLines& before, const RunLines& after, const std::string& unit,
              ComparedResults& results) {
  const std::vector<std::string> of_a = sets_of(before), of_b = sets_of(after);
  for (const std::string& name : of_a) {
    if (std::find(of_b.begin(), of_b.end(), name) != of_b.end()) {
      const bool in_bits = unit == bits_per_byte_unit;
      add_validation({in_bits ? "validation_bits_per_byte_sets" : "validation_losses", name}, before, after, unit,
                     results);
    }
  }
  if (of_a != of_b) {
    const auto text = [](const std::vector<std::string>& names) {
      return names.empty() ? std::string("none") : fmt::format("{}", fmt::join(names, ", "));
    };
    results.notes.push_back(
        fmt::format("the validation sets of {} are {}, those of {} {}: validation_loss may be of "
                    "other texts",
                    a.file.string(), text(of_a), b.file.string(), text(of_b)));
  }
}

// Runs that did not go as far as each other are judged at other steps.
void note_lengths(const Input& a, const Input& b, const RunLines& before, const RunLines& after,
                  ComparedResults& results) {
  const auto end = [](const RunLines& run) { return run.lines.back().at("step").get<double>(); };
  if (before.lines.size() != after.lines.size() || end(before) != end(after)) {
    results.notes.push_back(fmt::format(
        "the runs are not of one length: {} has {} lines to step {}, {} has {} to step {}; what is said of "
        "their ends is of unlike steps",
        a.file.string(), before.lines.size(), end(before), b.file.string(), after.lines.size(), end(after)));
  }
}

// The resolved configuration that lies beside the metrics; nothing where none that can be read does.
std::optional<Node> configuration_of(const Input& input) {
  const std::filesystem::path file = input.file.parent_path() / "config.resolved.toml";
  try {
    const std::string text = read_text_file(file).value_or("");
    auto sources = std::make_shared<Sources>();
    Diagnostics diagnostics(sources);
    return read_toml(*sources, sources->add(file.string(), text), text, diagnostics);
  } catch (const Error&) {
    return std::nullopt;  // what is compared are the metrics
  }
}

std::optional<Node> value_in(const std::optional<Node>& root, const char* table, const char* key) {
  const auto member = [](const Node& of, const char* name) {
    const auto found =
        std::find_if(of.members.begin(), of.members.end(), [&](const Member& one) { return one.key == name; });
    return found == of.members.end() ? nullptr : &found->value;
  };
  const Node* in = root ? member(*root, table) : nullptr;
  const Node* value = in != nullptr ? member(*in, key) : nullptr;
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<std::int64_t> seed_of(const Input& input) {
  const std::optional<Node> seed = value_in(configuration_of(input), "run", "seed");
  return seed && seed->kind == Node::Kind::integer ? std::optional(seed->integer) : std::nullopt;
}

LossUnit unit_of(const Input& input) {
  const std::optional<Node> root = configuration_of(input);
  const auto text = [&](const char* table, const char* key) {
    const std::optional<Node> value = value_in(root, table, key);
    return value ? value->text : std::string();
  };
  return loss_unit({.source = text("data", "source"),
                    .tokenizer = text("data", "tokenizer"),
                    .objective = text("train", "objective")},
                   std::filesystem::absolute(input.file).parent_path());
}

// Losses of one unit, or the bits per byte of both runs.
void add_losses(const Input& a, const Input& b, const RunLines& before, const RunLines& after,
                ComparedResults& results) {
  const LossUnit unit_a = unit_of(a), unit_b = unit_of(b);
  if (comparable(unit_a, unit_b)) {
    const std::string unit = unit_b.name.empty() ? "" : unit_a.name;
    add_loss(before, after, unit, results);
    add_validation({"validation_loss"}, before, after, unit, results);
    add_sets(a, b, before, after, unit, results);
    return;
  }
  const std::size_t rows = results.rows.size();
  add_validation({"validation_bits_per_byte"}, before, after, bits_per_byte_unit, results);
  add_sets(a, b, before, after, bits_per_byte_unit, results);
  results.notes.push_back(fmt::format(
      "losses are left out: those of {} are {}, those of {} {}; {}", a.file.string(), long_name(unit_a),
      b.file.string(), long_name(unit_b),
      results.rows.size() > rows
          ? "validation_bits_per_byte is of the text, and compares where both have measured the same"
          : "validation_bits_per_byte would compare them, and is not in both runs (orthant eval measures it)"));
}

// Other weights and other batches: what differs may be no more than that.
void note_seeds(const Input& a, const Input& b, ComparedResults& results) {
  const auto before = seed_of(a), after = seed_of(b);
  if (before && after && *before != *after) {
    results.notes.push_back(
        fmt::format("the runs have unlike seeds: run.seed is {} in {} and {} in {}; losses may differ for that alone",
                    *before, a.file.string(), *after, b.file.string()));
  }
}

// A loss that was not finite is written as null.
void note_lost_ends(const char* key, const Input& input, const RunLines& run, ComparedResults& results) {
  const Series finite = run.of({key}, 0);
  const double last = finite.steps.empty() ? 0 : finite.steps.back();
  const auto lost = std::count_if(run.lines.begin(), run.lines.end(), [&](const Json& line) {
    return line.contains(key) && line.at("step").get<double>() > last;
  });
  if (lost > 0) {
    results.notes.push_back(fmt::format(
        "{}: the last {} lines with {} have no finite one above 0; {}", input.file.string(), lost, key,
        finite.steps.empty() ? "nor has any line before" : fmt::format("step {} is taken for its end", last)));
  }
}

}  // namespace

ComparedResults compare_runs(const Input& a, const Input& b, std::optional<long> warmup) {
  const RunLines before = lines_of(a), after = lines_of(b);
  ComparedResults results{"runs", {}, {}};
  add_speed("step_seconds", "faster", "slower", before, after, warmup, results);
  add_speed("tokens_per_second", "slower", "faster", before, after, warmup, results);
  add_losses(a, b, before, after, results);
  if (results.rows.empty()) {
    throw ConfigError(
        fmt::format("{} and {} have nothing in common to compare: {}", a.file.string(), b.file.string(), expected));
  }
  note_lengths(a, b, before, after, results);
  note_seeds(a, b, results);
  for (const char* key : {"loss", "validation_loss"}) {
    note_lost_ends(key, a, before, results);
    note_lost_ends(key, b, after, results);
  }
  results.notes.push_back(
      "intervals are of the noise within each run: another seed, or a machine that was busier during one of them, is "
      "not in "
      "them");
  return results;
}

}  // namespace orthant::comparing
