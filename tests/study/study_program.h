// A study as its users run it, in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace orthant::study_test {

inline constexpr const char* base =
    "[run]\nsteps = 6\nlog_every = 2\nvalidate_every = 2\n[data]\npath = [\"text.txt\"]\nsequence_length = 16\n"
    "validation_fraction = 0.2\nvalidation_sequences = 4\n"
    "[batch]\nsequences = 4\n[model]\nlayers = 1\nd_model = 16\nheads = 2\n[moe]\nexperts = 4\nrouter = \"switch\"\n";

class StudyProgram : public testing::Test {
 protected:
  StudyProgram() { folder_.write("base.toml", base); }

  void write(const std::string& study, const std::string& rest) {
    folder_.write("study.toml", "[study]\nname = \"s\"\nconfig = \"base.toml\"\n" + study + rest);
  }
  run_test::Result run(std::vector<std::string> words = {}) const {
    words.insert(words.begin(), {"bench", "expert-scaling", "study.toml"});
    return folder_.orthant(words);
  }
  std::filesystem::path study(const std::string& name = "") const { return folder_.path("studies/s") / name; }
  nlohmann::json card() const {
    return nlohmann::json::parse(launch_test::read_file(study("study.json")), nullptr, false);
  }
  std::map<std::string, nlohmann::json> points() const {
    std::map<std::string, nlohmann::json> all;
    for (const nlohmann::json& point : card().value("points", nlohmann::json::array())) {
      all[point.at("id")] = point;
    }
    return all;
  }
  // The id that a run gets at its first step, and keeps.
  std::string run_id(const std::string& point) const {
    const auto lines = run_test::lines_of(study("points/" + point + "/metrics.jsonl"));
    return lines.empty() ? "" : nlohmann::json::parse(lines.back()).at("run_id").get<std::string>();
  }

  run_test::ProgramFolder folder_;
};

}  // namespace orthant::study_test
