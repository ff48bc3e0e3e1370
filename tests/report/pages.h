// Pages that tests write, and what they hold by an independent reader (read_page.py).
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/report/report.h"
#include "tests/report/made_up.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::report_test {

// What the file holds; a null where it is not well-formed.
inline nlohmann::json held_by(const run_test::ProgramFolder& folder, const std::filesystem::path& file) {
  const run_test::Result read =
      folder.command({"python3", "-B", paths::source("tests/report/read_page.py"), file.string()});
  EXPECT_EQ(read.code, 0) << file << ": " << read.error;
  return read.code == 0 ? nlohmann::json::parse(read.output) : nlohmann::json();
}

inline nlohmann::json page_of(const run_test::ProgramFolder& folder, const std::vector<std::filesystem::path>& runs) {
  write_run_report(runs, folder.path("page.html"));
  return held_by(folder, folder.path("page.html"));
}

inline nlohmann::json page_of_study(const run_test::ProgramFolder& folder, const Json& study,
                                    const Json& fits = nullptr) {
  write_study(folder.path("study"), study, fits);
  write_study_report(folder.path("study"));
  return held_by(folder, folder.path("study") / "report.html");
}

inline const nlohmann::json& picture(const nlohmann::json& page, const std::string& figure) {
  static const nlohmann::json none;
  const std::string id = figure + "-picture";
  if (!page.contains("pictures") || !page["pictures"].contains(id)) {
    ADD_FAILURE() << "there is no picture " << id;
    return none;
  }
  return page["pictures"][id];
}

// The points of a series; empty where there is none.
inline nlohmann::json series(const nlohmann::json& page, const std::string& figure, const std::string& name) {
  const nlohmann::json& found = picture(page, figure);
  if (!found.is_object() || !found["series"].contains(name)) {
    ADD_FAILURE() << figure << " has no series " << name;
    return nlohmann::json::array();
  }
  return found["series"][name];
}

}  // namespace orthant::report_test
