// What `orthant bench compare A B` finds: two runs, or two studies.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/fit/two_samples.h"

namespace orthant {

struct ComparedRow {
  std::string quantity;
  TwoSamples numbers;
  std::string verdict;    // in words
  std::string unit = {};  // of before and after; empty: the quantity says it, or has none
};

struct ComparedResults {
  std::string kind;  // "runs" or "studies"
  std::vector<ComparedRow> rows;
  std::vector<std::string> notes;  // sentences about what was left out, or is not in the intervals
};

// A and B: folders of runs or their metrics.jsonl; folders of studies or their study.json; both of one kind. Of a run,
// lines of the first `warmup` steps are left out; nothing: the first line and the first tenth.
// Errors: ConfigError for what cannot be read or has nothing to compare.
ComparedResults compare_results(const std::string& a, const std::string& b, std::optional<long> warmup);

}  // namespace orthant
