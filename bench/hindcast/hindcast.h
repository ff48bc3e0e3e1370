// The hindcast: how far the model of apps/cost is from published runs.
//
// Every error of a row that was fitted comes from a fit without its group (a paper, a size of a model, a model): the
// group's rows are predicted by factors that no row of it has moved. So do intervals: a group's is as wide as 90 % of
// the errors of all other groups.
//
// Thread safety: pure functions; the same files give the same bits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cost/machine_file.h"
#include "bench/hindcast/fit.h"
#include "bench/hindcast/row.h"

namespace orthant::hindcast {

struct Prediction {
  Row row;                // with the micro-batch and chunks that were taken
  double seconds = 0;     // predicted
  double ratio = 1;       // low is seconds / ratio, high is seconds * ratio
  double peak_bytes = 0;  // predicted, of the rank that reports; 0: not asked
  bool fits = true;       // predicted, of the rank with the most
};

// Errors are of predicted / measured - 1; all as parts, not per cent.
struct ErrorLine {
  std::string name;
  std::size_t rows = 0;
  double median = 0, mean = 0, p90 = 0, largest = 0;
  double bias = 0;                      // mean of signed errors
  std::optional<double> coverage = {};  // of the 90 % interval
};

// Of the layouts that a source measured side by side, how much slower than the best is the one with the least predicted
// time.
struct SweepLine {
  std::string name, chosen, best;
  std::size_t layouts = 0;
  double regret = 0;
  bool computed = false;  // Row::computed
};

struct OutOfMemory {
  std::size_t rows = 0;                                 // that say what they ran with
  std::size_t right = 0, missed = 0, false_alarms = 0;  // predicted and told; told only; predicted only
};

struct Hindcast {
  std::vector<Prediction> predictions;
  std::vector<ErrorLine> sources;  // of step times
  std::vector<ErrorLine> held;     // of step times, by group left out
  std::vector<ErrorLine> memory;
  std::vector<ErrorLine> summary;  // core, several nodes of vTrain: what the goals are about
  std::vector<SweepLine> sweeps;
  OutOfMemory out_of_memory;
  std::vector<NotScored> not_scored;
  cost::FactorFile factors;  // of all fitted rows, or those that were given

  double mean_regret(bool computed = false) const;  // 0 where there is no sweep
};

// The committed rows. Errors: Error for a file that is missing or wrong.
Rows committed_rows(const std::string& folder);

// The machines that rows name, with the factors of `folder`'s factors.toml. Rows whose machine has no file are moved to
// `not_scored`.
Machines machines_of(Rows& rows, const std::string& folder);

// Refits for every group that is left out.
Hindcast hindcast(const Rows& rows, const Machines& machines);

// With the factors of the machines as they are: nothing is fitted.
Hindcast scored(const Rows& rows, const Machines& machines, const cost::FactorFile& factors);

// Tables for a terminal and a page; one JSON document.
std::string text_of(const Hindcast& result);
std::string json_of(const Hindcast& result);

// A picture of each source, predicted against measured: {file name, SVG}.
std::vector<std::pair<std::string, std::string>> pictures_of(const Hindcast& result);

// The text of factors.toml for a fit. Generations of `before` that no row ran on have what a fit starts from.
std::string fit_file(const Hindcast& result, const cost::FactorFile& before);

}  // namespace orthant::hindcast
