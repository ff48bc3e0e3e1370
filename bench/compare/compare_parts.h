// What compare_results.cpp, compare_runs.cpp and compare_studies.cpp share. Internal to these.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "bench/compare/compare_results.h"
#include "core/base/json.h"

namespace orthant::comparing {

inline constexpr const char* expected =
    "expected the folder of a run or its metrics.jsonl, or the folder of a study or its study.json";

struct Input {
  std::filesystem::path file;
  bool study = false;
  std::string text;
};

// Errors: ConfigError.
Json parsed(const std::string& text, const std::string& where);
// A number above 0 and finite; nothing for all else, missing keys too.
std::optional<double> number_at(const Json& object, const char* key);
// "lower" and "higher" in the words of the quantity.
std::string words(Verdict verdict, const char* lower, const char* higher);

ComparedResults compare_runs(const Input& a, const Input& b, std::optional<long> warmup);
ComparedResults compare_studies(const Input& a, const Input& b);

}  // namespace orthant::comparing
