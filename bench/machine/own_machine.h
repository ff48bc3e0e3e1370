// Predicted steps of this machine's ranks against measured ones: one fit on some layouts, errors of the others.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apps/cost/machine.h"
#include "bench/machine/own_layouts.h"

namespace orthant::machine {

// A layout, and what its steps took: the median of each round. The quickest round counts: others use this machine too.
struct OwnRow {
  OwnLayout layout;
  std::vector<double> medians;
  double seconds() const;
};

// Machines by communicator.
using OwnMachines = std::map<std::string, cost::Machine>;

// Trains every layout once a round, in the order of own_layouts(), until `rounds` are done or `seconds` have passed;
// the first round is always whole. folder: for runs, of the caller. Errors: Error with the end of a log.
std::vector<OwnRow> timed_rows(const std::vector<OwnLayout>& layouts, int rounds, double seconds,
                               const std::filesystem::path& folder,
                               const std::function<void(const OwnRow&)>& told = nullptr);

std::string to_json(const std::vector<OwnRow>& rows);
// Rows of own_layouts() in text that to_json() wrote. Errors: Error for other text, and for layouts that are no more.
std::vector<OwnRow> rows_from_json(const std::string& text);

double predicted_seconds(const OwnRow& row, const OwnMachines& machines);

// The factors that the rows with `seen` ask for, drawn to those measured: damped least squares on ln(predicted /
// measured). REQUIRES: a machine for each communicator of the rows.
OwnMachines fitted(const std::vector<OwnRow>& rows, OwnMachines machines);

struct OwnErrors {
  int rows = 0;
  double mean = 0, median = 0, p90 = 0, largest = 0, bias = 0;  // per cent; of sizes, but bias
};
OwnErrors errors_of(const std::vector<OwnRow>& rows, const OwnMachines& machines, bool seen);

std::string text_of(const std::vector<OwnRow>& rows, const OwnMachines& machines);

}  // namespace orthant::machine
