// Two studies, by their cards.
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "apps/report/loss_unit.h"
#include "bench/compare/compare_parts.h"

namespace orthant::comparing {
namespace {

// Done runs of one point: ids that differ in their seed alone.
struct StudyPointRuns {
  std::vector<double> losses, seconds;
  std::map<std::string, double> by_seed;  // losses
};

Json card_of(const Input& input) {
  const std::string where = input.file.string();
  Json card = parsed(input.text, where);
  if (!card.is_object() || !card.contains("points") || !card["points"].is_array()) {
    throw ConfigError(fmt::format("{}: a study's card needs a list 'points'; {}", where, expected));
  }
  for (const Json& point : card["points"]) {
    if (!point.is_object() || !point.contains("id") || !point["id"].is_string()) {
      throw ConfigError(fmt::format("{}: a point has no 'id'", where));
    }
  }
  return card;
}

std::map<std::string, StudyPointRuns> points_of(const Json& card) {
  std::map<std::string, StudyPointRuns> points;
  for (const Json& point : card["points"]) {
    if (!point.contains("result") || !point["result"].is_object() || point.value("status", Json("")) != "done") {
      continue;
    }
    std::string id = point["id"].get<std::string>();
    const std::string seed = point.contains("seed") ? "_s" + point["seed"].dump() : "";
    if (!seed.empty() && id.ends_with(seed)) {
      id.resize(id.size() - seed.size());
    }
    StudyPointRuns& runs = points[id];
    if (const auto loss = number_at(point["result"], "validation_loss")) {
      runs.losses.push_back(*loss);
      runs.by_seed[seed] = *loss;
    }
    if (const auto seconds = number_at(point["result"], "step_seconds")) {
      runs.seconds.push_back(*seconds);
    }
  }
  return points;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Values by name: those of the configuration of all points, the text's hash, and what is set of each point.
std::map<std::string, std::string> settings_of(const Json& card) {
  std::map<std::string, std::string> settings;
  if (card.contains("config") && card["config"].is_object()) {
    for (const auto& [table, keys] : card["config"].items()) {
      if (!keys.is_object()) {
        continue;
      }
      for (const auto& [key, value] : keys.items()) {
        settings[table + "." + key] = text_of(value);
      }
    }
  }
  for (const char* own : {"run.name", "run.directory", "data.path"}) {  // the text is told by its hash
    settings.erase(own);
  }
  if (card.contains("text") && card["text"].is_object() && card["text"].contains("hash")) {
    settings["text"] = text_of(card["text"]["hash"]);
  }
  for (const Json& point : card["points"]) {
    const std::string id = point["id"].get<std::string>();
    for (const char* key : {"steps", "tokens", "set"}) {
      if (point.contains(key)) {
        settings[fmt::format("{} of {}", key, id)] = text_of(point[key]);
      }
    }
  }
  return settings;
}

// Points are paired by their ids, whatever these were trained on and for how long.
void note_differences(const Json& a, const Json& b, ComparedResults& results) {
  constexpr std::size_t told = 6;
  const auto before = settings_of(a), after = settings_of(b);
  std::string text;
  std::size_t count = 0;
  for (const auto& [name, value] : before) {
    const auto other = after.find(name);
    if (other != after.end() && other->second != value && ++count <= told) {
      text += fmt::format("{}{} ({} before, {} after)", text.empty() ? "" : ", ", name, value, other->second);
    }
  }
  if (count > 0) {
    results.notes.push_back(fmt::format("the studies differ in more than their results: {}{}", text,
                                        count > told ? fmt::format(", and {} more", count - told) : ""));
  }
}

// Of the losses of all points, with their tokenizer as the configuration names it.
LossUnit unit_of(const Json& card) {
  const auto text = [&](const char* table, const char* key) {
    const Json config = card.value("config", Json::object());
    const Json in = config.is_object() ? config.value(table, Json::object()) : Json::object();
    return in.is_object() && in.contains(key) ? text_of(in[key]) : std::string();
  };
  LossUnit unit = loss_unit({.source = text("data", "source"),
                             .tokenizer = text("data", "tokenizer"),
                             .objective = text("train", "objective")},
                            {});
  if (unit.tokens.empty() && !unit.name.empty()) {
    unit.tokens = "tokenizer " + text("data", "tokenizer");
  }
  return unit;
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += std::log(value);
  }
  return std::exp(sum / static_cast<double>(values.size()));
}

// Deviations of ln loss from their point's mean, scaled up for that mean, over both studies.
struct Spread {
  std::vector<double> deviations;
  double freedom = 0;

  void add(const std::map<std::string, StudyPointRuns>& points) {
    for (const auto& [id, runs] : points) {
      const double n = static_cast<double>(runs.losses.size());
      for (const double loss : runs.losses) {
        if (n > 1) {
          deviations.push_back(std::sqrt(n / (n - 1)) * std::log(loss / geometric_mean(runs.losses)));
        }
      }
      freedom += n > 1 ? n - 1 : 0;
    }
  }
  double mean_of(std::size_t seeds, Draws& draws) const {
    double sum = 0;
    for (std::size_t i = 0; i < seeds; ++i) {
      sum += deviations[draws.index(deviations.size())];
    }
    return sum / static_cast<double>(seeds);
  }
};

// ln of after over before, of the seeds that both have.
std::vector<double> log_ratios(const StudyPointRuns& before, const StudyPointRuns& after) {
  std::vector<double> ratios;
  for (const auto& [seed, loss] : before.by_seed) {
    if (const auto other = after.by_seed.find(seed); other != after.by_seed.end()) {
      ratios.push_back(std::log(other->second / loss));
    }
  }
  return ratios;
}

// The same of ratios of one seed in both studies, whose batches are the same: they differ less than losses do.
struct PairSpread {
  std::vector<double> deviations;
  double freedom = 0;

  void add(const std::vector<double>& ratios) {
    const double n = static_cast<double>(ratios.size());
    const double mean = ratios.empty() ? 0 : std::accumulate(ratios.begin(), ratios.end(), 0.0) / n;
    for (const double ratio : ratios) {
      if (n > 1) {
        deviations.push_back(std::sqrt(n / (n - 1)) * (ratio - mean));
      }
    }
    freedom += n > 1 ? n - 1 : 0;
  }
  // Draws of the ratio of a point whose seeds have these.
  std::vector<double> draws_of(const std::vector<double>& ratios, const BootstrapOptions& options) const {
    Draws draws(options.seed);
    const double n = static_cast<double>(ratios.size());
    const double mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / n;
    std::vector<double> drawn;
    for (int i = 0; i < options.resamples; ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < ratios.size(); ++k) {
        sum += deviations[draws.index(deviations.size())];
      }
      drawn.push_back(std::exp(mean + sum / n));
    }
    return drawn;
  }
};

// All points together: geometric means, drawn over points.
void add_whole(const std::string& name, const std::vector<double>& before, const std::vector<double>& after,
               const char* lower, const char* higher, ComparedResults& results) {
  if (before.empty()) {
    return;
  }
  const BootstrapOptions options;
  Draws draws(options.seed);
  std::vector<double> ratios;
  const double n = static_cast<double>(before.size()), up = std::sqrt(n / std::max(1.0, n - 1));
  double mean = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    mean += std::log(after[i] / before[i]) / n;
  }
  for (int b = 0; b < options.resamples && before.size() >= 5; ++b) {
    double sum = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::size_t at = draws.index(before.size());
      sum += std::log(after[at] / before[at]) - mean;
    }
    ratios.push_back(std::exp(mean + up * sum / n));
  }
  const TwoSamples numbers = judge(geometric_mean(before), geometric_mean(after), ratios, options, n - 1);
  results.rows.push_back(
      {fmt::format("{}, {} points", name, before.size()), numbers, words(numbers.verdict, lower, higher)});
}

}  // namespace

ComparedResults compare_studies(const Input& a, const Input& b) {
  const Json card_before = card_of(a), card_after = card_of(b);
  const auto before = points_of(card_before), after = points_of(card_after);
  ComparedResults results{"studies", {}, {}};
  Spread spread;
  spread.add(before);
  spread.add(after);
  PairSpread pairs;
  for (const auto& [id, runs] : after) {
    const auto was = before.find(id);
    pairs.add(was == before.end() ? std::vector<double>() : log_ratios(was->second, runs));
  }
  const BootstrapOptions options;
  const LossUnit unit_before = unit_of(card_before), unit_after = unit_of(card_after);
  const bool ranked = comparable(unit_before, unit_after);
  if (!ranked) {
    results.notes.push_back(fmt::format("losses are left out: those of {} are {}, those of {} {}", a.file.string(),
                                        long_name(unit_before), b.file.string(), long_name(unit_after)));
  }
  const std::string unit = unit_after.name.empty() ? "" : unit_before.name;
  std::vector<double> losses[2], seconds[2];
  std::size_t only_one = 0;
  for (const auto& [id, runs] : after) {
    const auto other = before.find(id);
    if (other == before.end()) {
      ++only_one;
      continue;
    }
    const StudyPointRuns& was = other->second;
    if (ranked && !was.losses.empty() && !runs.losses.empty()) {
      Draws draws(options.seed);
      std::vector<double> ratios;
      losses[0].push_back(geometric_mean(was.losses));
      losses[1].push_back(geometric_mean(runs.losses));
      const std::vector<double> seeds = log_ratios(was, runs);
      const bool paired = seeds.size() > 1 && seeds.size() == runs.losses.size() && seeds.size() == was.losses.size();
      if (paired) {
        ratios = pairs.draws_of(seeds, options);
      }
      for (int i = 0; i < options.resamples && !paired && !spread.deviations.empty(); ++i) {
        ratios.push_back(
            losses[1].back() / losses[0].back() *
            std::exp(spread.mean_of(runs.losses.size(), draws) - spread.mean_of(was.losses.size(), draws)));
      }
      const TwoSamples numbers =
          judge(losses[0].back(), losses[1].back(), ratios, options, paired ? pairs.freedom : spread.freedom);
      results.rows.push_back({"validation_loss, " + id, numbers, words(numbers.verdict, "lower", "higher"), unit});
    }
    if (!was.seconds.empty() && !runs.seconds.empty()) {
      seconds[0].push_back(geometric_mean(was.seconds));
      seconds[1].push_back(geometric_mean(runs.seconds));
      const TwoSamples numbers = judge(seconds[0].back(), seconds[1].back(), {}, options, 0);
      results.rows.push_back({"step_seconds, " + id, numbers, words(numbers.verdict, "faster", "slower")});
    }
  }
  for (const auto& [id, runs] : before) {
    only_one += after.contains(id) ? 0 : 1;
  }
  add_whole("validation_loss", losses[0], losses[1], "lower", "higher", results);
  add_whole("step_seconds", seconds[0], seconds[1], "faster", "slower", results);
  if (results.rows.empty()) {
    throw ConfigError(fmt::format("{} and {} have no finished point in common", a.file.string(), b.file.string()));
  }
  note_differences(card_before, card_after, results);
  if (only_one > 0) {
    results.notes.push_back(fmt::format("{} points are finished in one of the studies only, and left out", only_one));
  }
  results.notes.push_back(
      spread.deviations.empty() ? "no point has several seeds: the noise of a loss is unknown"
      : pairs.deviations.empty()
          ? fmt::format("the noise of a loss is that of seeds of one point, {} degrees of freedom", spread.freedom)
          : fmt::format("the noise of a difference is that of one seed in both studies, {} degrees of freedom; where "
                        "seeds are not the same, that of the seeds of one point",
                        pairs.freedom));
  results.notes.push_back("a point's step time is one number, without interval; that of all points is over points");
  return results;
}

}  // namespace orthant::comparing
