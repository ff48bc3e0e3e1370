#include "apps/eval/measure.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/pretrained/one_rank_model.h"
#include "core/arch/links.h"
#include "core/data/validation_sets.h"
#include "core/train/micro_batches.h"
#include "core/train/objectives.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

constexpr std::int64_t every_sequence = std::int64_t{1} << 40;

// Sequences that share a group of routing stay together.
std::int64_t sequences_at_once(const Settings& s) {
  constexpr std::int64_t tokens_at_once = 4096;
  const std::int64_t positions = s.data.sequence_length;
  const std::int64_t group =
      s.moe.experts == 0 ? 1 : std::max<std::int64_t>(1, s.moe.group_tokens.or_else(positions) / positions);
  return (std::max<std::int64_t>(1, tokens_at_once / positions) + group - 1) / group * group;
}

MeasuredFile measure(const NamedSet& set, OneRankModel& model) {
  const Settings& s = model.settings();
  const Objectives objectives(s);
  Stream& stream = model.stream();
  StepSums sums;
  const Tensor of_objectives = stream.device().empty(DType::f64, {objectives.sums()});
  stream.fill(of_objectives, 0);
  sums.objectives = objectives.in(of_objectives);
  sums.loss = of_objectives.slice(0, {1});
  std::vector<std::int64_t> counts(objectives.counts(), 0), valid(spaces_of(s).size(), 0);
  const std::int64_t all = set.sequences->validation_sequences(), at_once = sequences_at_once(s);
  for (std::int64_t first = 0; first < all; first += at_once) {
    HostBatch batch = set.sequences->validation(first, std::min(at_once, all - first));
    objectives.count(batch, model.plan(), valid, counts);
    pad_to(batch, at_once, spaces_of(s));
    model.forward(batch, model.layers(), sums);
  }
  std::vector<double> found(static_cast<std::size_t>(objectives.sums()));
  stream.download(found.data(), of_objectives);
  stream.synchronize();
  const ObjectiveReport report = objectives.report(found, counts, false);
  require(std::isfinite(report.loss), "{}: the loss is {} there: are the model's weights damaged, or has it diverged?",
          set.name, report.loss);
  return {.file = set.name, .sequences = all, .labels = counts.front(), .loss = report.loss, .figures = report.figures};
}

// data.source of the run that wrote the checkpoint: an opened model has another one, which reads nothing.
std::string source_of(const OpenedModel& model) {
  const auto& state = model.reader().state();
  const auto settings = state.find("settings");
  const auto all = settings == state.end() ? nlohmann::json() : nlohmann::json::parse(settings->second, nullptr, false);
  const std::string written = all.is_object() ? all.value("data.source", std::string()) : std::string();
  const auto name = nlohmann::json::parse(written, nullptr, false);
  require(name.is_string(), "{} does not say which source it was trained with", model.checkpoint().string());
  return name.get<std::string>();
}

}  // namespace

std::vector<MeasuredFile> measure_files(const OpenedModel& model, const std::vector<std::string>& files, int threads) {
  Config config = model.config();
  config.settings.data.source = source_of(model);
  config.settings.data.validation_path = files;
  config.settings.data.validation_names = files;
  config.settings.data.validation_sequences = every_sequence;
  const ValidationSets sets(config.settings, true);
  std::vector<MeasuredFile> measured;
  run_threads(1, [&](Communicator& communicator) {
    OneRankModel on_rank(config, model.reader(), 0, threads, communicator);
    for (const NamedSet& set : sets.sets()) {
      measured.push_back(measure(set, on_rank));
    }
  });
  return measured;
}

}  // namespace orthant
