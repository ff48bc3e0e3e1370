// Inputs with something wrong in them, the same each time: a page is well-formed or refused.
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <algorithm>
#include <random>

#include "tests/report/pages.h"

namespace orthant::report_test::mutation_test {
namespace {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  // One value somewhere becomes another, or goes.
  Json mutated(Json json) {
    for (std::uint64_t changes = 1 + below(3); changes > 0; --changes) {
      std::vector<Json*> all;
      collect(json, all);
      Json& one = *all[below(all.size())];
      if (one.is_structured() && !one.empty() && below(2) == 0) {
        auto it = one.begin();
        std::advance(it, static_cast<std::ptrdiff_t>(below(one.size())));
        one.erase(it);
      } else {
        one = value();
      }
    }
    return json;
  }

  std::uint64_t below(std::uint64_t n) { return random_() % std::max<std::uint64_t>(n, 1); }

 private:
  static void collect(Json& json, std::vector<Json*>& all) {
    all.push_back(&json);
    if (json.is_structured()) {
      for (Json& inside : json) {
        collect(inside, all);
      }
    }
  }

  Json value() {
    static const Json values[] = {nullptr,
                                  0,
                                  -1,
                                  1,
                                  0.5,
                                  1e308,
                                  -1e308,
                                  5e-324,
                                  9007199254740993,
                                  18446744073709551615u,
                                  true,
                                  "",
                                  "done",
                                  "small",
                                  "<&\"'>]]>",
                                  "\x01",
                                  Json::array(),
                                  Json::object(),
                                  Json::array({1, 2, 3}),
                                  Json::array({Json::array({1, 2, 3})}),
                                  Json::object({{"0", 1}})};
    return values[below(std::size(values))];
  }

  std::mt19937_64 random_;
};

// All of them at once, by Python's XML parser.
void expect_well_formed(const run_test::ProgramFolder& folder, const std::vector<std::string>& files) {
  std::vector<std::string> words = {"python3", "-c",
                                    "import re, sys, xml.etree.ElementTree as tree\n"
                                    "for file in sys.argv[1:]:\n"
                                    "  text = open(file, encoding='utf-8').read()\n"
                                    "  tree.fromstring(text)\n"
                                    "  bad = re.search(' (d|x|y|cx|cy|width|height)=\"[^\"]*(nan|inf)', text)\n"
                                    "  assert not bad, (file, bad)\n"};
  words.insert(words.end(), files.begin(), files.end());
  const run_test::Result result = folder.command(words);
  EXPECT_EQ(result.code, 0) << result.error;
}

TEST(Mutation, EveryStudyIsAPageOrRefused) {
  const run_test::ProgramFolder folder;
  Json study = made_up_study();
  Json& points = study["points"];
  points.erase(std::remove_if(points.begin(), points.end(), [](const Json& p) { return p["size"] != "small"; }),
               points.end());
  const Json fits = made_up_fits(study);
  Mutator mutator(1);
  std::vector<std::string> pages;
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    const auto path = folder.path("s" + std::to_string(i));
    write_study(path, i % 3 == 0 ? study : mutator.mutated(study), i % 3 == 0 ? mutator.mutated(fits) : fits);
    try {
      write_study_report(path);
      pages.push_back((path / "report.html").string());
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(pages.size(), 30u);
  expect_well_formed(folder, pages);
}

TEST(Mutation, EveryRunIsAPageOrRefused) {
  const run_test::ProgramFolder folder;
  Mutator mutator(2);
  std::vector<std::string> pages;
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    const auto path = folder.path("r" + std::to_string(i));
    std::vector<Json> lines = made_up_lines(6, 2, 4, 1);
    Json& line = lines[mutator.below(lines.size())];
    line = i % 4 == 0 ? line : mutator.mutated(line);
    write_run(path, lines, "", i % 4 == 0 ? mutator.mutated(made_up_trace(2)) : Json());
    const std::filesystem::path runs[] = {path};
    try {
      write_run_report(runs, path / "report.html");
      pages.push_back((path / "report.html").string());
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(pages.size(), 30u);
  expect_well_formed(folder, pages);
}

}  // namespace
}  // namespace orthant::report_test::mutation_test
