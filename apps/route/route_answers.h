// The rows of `orthant route`: a recorded step replayed under each row's settings.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/route/machine_time.h"
#include "apps/route/route_questions.h"
#include "apps/route/step_time.h"
#include "core/config/config.h"

namespace orthant {

struct Answer {
  Question question;
  std::string refused;  // why there is no answer
  std::int64_t choices = 0, dropped_by_capacity = 0, dropped_by_chance = 0;
  std::vector<Decisions> layers;  // of the step
  double expert_load = 0;         // the busiest expert's choices over the mean, in the worst layer
  double rank_load = 0;           // the busiest rank's rows over the mean, likewise
  std::int64_t bytes_inside = 0, bytes_between = 0;
  std::optional<double> seconds;
  std::optional<cost::StepQuantiles> on_machine;
};

// Thread safety: none.
class RecordedRun {
 public:
  // Errors: ConfigError for a folder that holds no run or a dense one, and for a step that was not recorded; those of
  // read_recording.
  explicit RecordedRun(const RouteOptions& options);

  std::int64_t step() const { return step_; }
  const std::vector<std::int64_t>& recorded() const { return recorded_; }  // all steps of the run that are
  std::int64_t experts() const { return base_.settings.moe.experts; }
  std::optional<double> measured() const { return measured_; }  // seconds of the run's own steps, their median
  // Whether the run's own ranks all take part in the batch and the experts alone.
  bool has_layout() const { return layout_.has_value(); }

  // What a configuration refuses is in Answer::refused.
  Answer answer(const Question& q);

 private:
  void fill(Answer& answer);
  std::vector<Travel> travels_of(const Config& config, const Question& q, const ExpertLayout& layout,
                                 const std::vector<Decisions>& layers) const;
  // Whether the exchange of the row is that of its configuration, and can be tried.
  bool is_tried(const Config& config, const Question& q, const ExpertLayout& layout) const;
  double predict(const Answer& answer, const std::vector<Travel>& travels, const ExpertLayout& layout,
                 const Config& config);
  RoutedWork work_of(const Config& config, const std::vector<Decisions>& layers, const std::vector<Travel>& travels,
                     const ExpertLayout& layout, bool tried);
  std::optional<double> median_step_seconds(const std::vector<std::int64_t>& recorded) const;

  const RouteOptions& options_;
  Config base_;
  std::int64_t step_ = 0;
  std::vector<std::int64_t> recorded_;
  RecordedStep recording_;
  std::optional<ExpertLayout> layout_;
  std::optional<double> measured_;
  std::unique_ptr<WorkTimer> timer_;
  std::optional<MachineTime> machine_;
  Rates rates_;
  std::map<bool, RoutedWork> own_;  // by whether its exchange was tried
};

}  // namespace orthant
