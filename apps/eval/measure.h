// measure: the loss and the figures of a model's own objective over files, as its source of data reads them. Of any
// kind of model: what a validation of its run would say of these files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/pretrained/opened_model.h"

namespace orthant {

struct MeasuredFile {
  std::string file;
  std::int64_t sequences = 0;
  std::int64_t labels = 0;  // Objective::counts, the first: what the loss is a mean over
  double loss = 0;
  std::map<std::string, double> figures = {};  // of the objective: "masked_accuracy"
};

// All sequences of each file, by the run's data.source, objective and kind of model. Errors: those of ValidationSets
// and OneRankModel; Error for a loss that is not finite.
std::vector<MeasuredFile> measure_files(const OpenedModel& model, const std::vector<std::string>& files, int threads);

}  // namespace orthant
