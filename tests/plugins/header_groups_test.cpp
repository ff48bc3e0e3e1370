// Which public headers a library depends on: those that it includes. The fixtures in before/ were built against headers
// without a key that settings.h has now, which moves all others (CMakeLists.txt).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/modules/module.h"
#include "core/modules/read_library.h"
#include "tests/support/error_of.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::header_groups_test {
namespace {

namespace fs = std::filesystem;
using test::experiment;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string built_before(const std::string& name) {
  return paths::build("tests/plugins/fixtures/before/liborthant_plugin_" + name + ".so");
}
std::string fixture(const std::string& name) {
  return paths::build("tests/plugins/fixtures/liborthant_plugin_" + name + ".so");
}

std::vector<std::string> groups_of(const std::string& file) {
  const auto note = read_library(read_library_file(file));
  std::vector<std::string> groups;
  for (const auto& [group, hash] : note.value().headers) {
    groups.push_back(group);
  }
  return groups;
}

TEST(HeaderGroups, ALibraryNamesThoseThatItIncludes) {
  EXPECT_THAT(groups_of(fixture("small")), ElementsAre("modules", "operations", "plan", "tensors"));
  EXPECT_THAT(groups_of(paths::out_of_tree("spike_watcher")),
              ElementsAre("hook", "modules", "operations", "plan", "tensors"));
  // The plan tells the axis all that it asks of a model.
  EXPECT_THAT(groups_of(paths::plugin("liborthant_plugin_data.so")),
              ElementsAre("modules", "operations", "plan", "tensors"));
  // A key of a kind's own is read without the settings.
  EXPECT_THAT(groups_of(paths::out_of_tree("lion")),
              ElementsAre("modules", "operations", "optimizer", "plan", "tensors"));
  EXPECT_THAT(groups_of(paths::out_of_tree("warm_gate")),
              ElementsAre("gate", "modules", "operations", "plan", "tensors"));
  EXPECT_THAT(groups_of(paths::out_of_tree("relu_gate")),
              ElementsAre("gate", "modules", "operations", "plan", "settings", "sizes", "tensors"));
}

// Else whoever includes them would depend on every key.
TEST(HeaderGroups, OtherPublicHeadersKnowSettingsByName) {
  for (const auto& entry : fs::directory_iterator(paths::source("core/include/orthant"))) {
    EXPECT_THAT(launch_test::read_file(entry.path()), Not(HasSubstr("#include <orthant/settings.h>"))) << entry.path();
  }
}

std::string table(const std::string& name, const std::string& library, const std::string& keys) {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n{}", name, library, keys);
}

// Three steps with the plugin of before have the bits of today's.
Snapshot of_before_and_today(const std::string& name, const std::string& keys, const std::string& plugins,
                             const test::Overrides& overrides) {
  Snapshot before = take_snapshot(experiment(overrides, table(name, built_before(name), keys) + plugins), 3);
  const Snapshot today = take_snapshot(experiment(overrides, table(name, paths::out_of_tree(name), keys) + plugins), 3);
  test::expect_same_bits(before, today, name);
  return before;
}

// Two workers that average after every step, as one rank.
TEST(HeaderGroups, ANewKeyLeavesAnAxisAsItWas) {
  const test::Overrides sgd = {R"(optimizer.name="sgd")", R"(optimizer.schedule="constant")", "optimizer.momentum=0.0",
                               "optimizer.clip_grad_norm=0.0", "model.tie_embeddings=true"};
  const Snapshot& one = test::reference_of(sgd, 3);
  const Snapshot workers = of_before_and_today("local_sgd", "size = 2\nevery = 1\n", "", sgd);
  for (const auto& [name, values] : one.state) {
    if (name.starts_with("weight/")) {
      EXPECT_LT(test::relative_difference(workers.state.at(name), values), 1e-5) << name;
    }
  }
}

TEST(HeaderGroups, ANewKeyLeavesAKeeperAsItWas) {
  of_before_and_today("topk_sums", "density = 0.1\n", "[plugins.data]\nsize = 2\n", {});
}

// A library whose notes are changed.
class Changed {
 public:
  explicit Changed(const std::string& file) : content_(launch_test::read_file(file)) {
    content_.resize(content_.size() - stamp_size);
  }
  // Writes over what stands from the group's name on in its note, the first or a further one.
  void write(const std::string& group, const std::string& by, int nth = 0) {
    const std::string text = std::string("Orthant\0", 8) + group + '\0';
    std::size_t at = content_.find(text);
    for (; nth > 0; --nth) {
      at = content_.find(text, at + 1);
    }
    ASSERT_NE(at, content_.npos);
    content_.replace(at + 8, by.size(), by);
  }
  std::string refusal() const {
    const ProgramFolder folder;
    folder.write("p.so", content_);
    return test::error_of([&] { open_module("plugin", folder.path("p.so")); });
  }

 private:
  static constexpr std::size_t stamp_size = 80;
  std::string content_;
};

TEST(HeaderGroups, EachThatIsAnotherOneIsNamed) {
  Changed library(paths::plugin("liborthant_plugin_template.so"));
  library.write("plan", std::string("plan\0"
                                    "0123456789abcdef",
                                    21));
  library.write("operations", "operators!");
  const std::string refusal = library.refusal();
  EXPECT_THAT(refusal,
              AllOf(HasSubstr("/p.so was built with other public headers than those of this Orthant:\n"),
                    HasSubstr("\n    plan (acquire_order.h, "), HasSubstr("): built with 0123456789abcdef, here "),
                    HasSubstr("\n    operators!: built with "), HasSubstr(", there is no such group here\n"),
                    HasSubstr("\nRebuild it against the installed headers")));
  EXPECT_THAT(refusal, AllOf(Not(HasSubstr("tensors")), Not(HasSubstr("modules"))));
}

TEST(HeaderGroups, ObjectsOfTwoBuildsAreNoLibrary) {
  Changed library(fixture("two_objects"));
  library.write("plan",
                std::string("plan\0"
                            "0123456789abcdef",
                            21),
                1);
  EXPECT_THAT(library.refusal(), HasSubstr("its objects were compiled with unlike headers of the group \"plan\", "));
}

}  // namespace
}  // namespace orthant::run_test::header_groups_test
