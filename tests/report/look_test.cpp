// Pages as a browser shows them: look.py asks headless Chromium where things stand and what they look like.
//
// ORTHANT_LOOK_FOLDER=/tmp/look keeps pages and screenshots there, for people.
#include <gtest/gtest.h>

#include <cstdlib>

#include "apps/report/report.h"
#include "tests/report/made_up.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::report_test::look_test {
namespace {

namespace fs = std::filesystem;

constexpr int skipped = 77;

struct Folder {
  run_test::ProgramFolder own;
  fs::path path() const {
    const char* kept = std::getenv("ORTHANT_LOOK_FOLDER");
    return kept == nullptr ? own.path() : fs::path(kept);
  }
};

void look_at(const Folder& folder, const fs::path& page) {
  const run_test::Result result = folder.own.command(
      {"python3", "-B", paths::source("tests/report/look.py"), page.string(), page.string() + ".shots"});
  if (result.code == skipped) {
    GTEST_SKIP() << result.output;
  }
  EXPECT_EQ(result.code, 0) << result.output << result.error;
}

TEST(Look, RunsOnDeskAndPhoneInLightAndDark) {
  const Folder folder;
  const fs::path a = folder.path() / "routed", b = folder.path() / "a dense run with a rather long name of its own";
  write_run(a, made_up_lines(30, 3, 16, 1), made_up_config("routed", 3, 16), made_up_trace(4));
  write_run(b, made_up_lines(30, 0, 0, 2), made_up_config("dense", 0, 0));
  const fs::path runs[] = {a, b};
  write_run_report(runs, folder.path() / "runs.html");
  look_at(folder, folder.path() / "runs.html");
}

TEST(Look, StudyOnDeskAndPhoneInLightAndDark) {
  const Folder folder;
  const Json study = made_up_study();
  write_study(folder.path() / "study", study, made_up_fits(study));
  write_study_report(folder.path() / "study");
  look_at(folder, folder.path() / "study" / "report.html");
}

}  // namespace
}  // namespace orthant::report_test::look_test
