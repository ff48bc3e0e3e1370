// The module of tokenizers is opened by what needs it, and by nothing else; one that is missing, damaged or of another
// tree is refused by name. In a build folder the first use builds it, and plugins that `./launch` leaves out.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/build.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::own_module_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* file_name = "liborthant_module_tokenizer.so";

std::string module_bytes() {
  return launch_test::read_file(paths::plugin(file_name));
}

class OwnModule : public testing::Test {
 protected:
  OwnModule() {
    const auto wheels = nlohmann::json::parse(launch_test::read_file(paths::source("tests/tokenizer/wheels.json")));
    folder_.write("t/tokenizer.json", wheels["kinds"]["gpt2"]["tokenizer"].dump());
    folder_.write("a.txt", "the cat sat on the mat");
  }
  Result prepare(std::vector<std::string> environment) const {
    return folder_.orthant({"data", "prepare", "a.txt", "-o", "a.tok", "--tokenizer", "t/tokenizer.json"}, environment);
  }
  // With `content` as the first such file that is found.
  Result prepare_with(const std::string& content) const {
    folder_.write(fmt::format("path/{}", file_name), content);
    return prepare({searched()});
  }
  std::string searched() const { return "ORTHANT_PLUGIN_PATH=" + folder_.path("path").string(); }
  std::string place() const { return folder_.path("path").string() + "/" + file_name; }
  // The setting of a program that runs beside a library of its own, not older than its commands, without plugins.
  std::string library_of_its_own() const {
    folder_.write("lib/liborthant.so.0", launch_test::read_file(paths::build("lib/liborthant.so.0")));
    fs::last_write_time(folder_.path("lib/liborthant.so.0"), fs::last_write_time(paths::build("lib/liborthant.so.0")));
    return "LD_LIBRARY_PATH=" + folder_.path("lib").string();
  }
  // Says that `file`, beside that library, has a build folder. The setting of a program that finds a cmake which copies
  // the real one there, and writes down what it was asked for.
  std::string builds(const std::string& file) const {
    const fs::path own = folder_.path("lib/orthant/plugins") / file;
    fs::create_directories(folder_.path("tree"));
    folder_.write(fmt::format("lib/orthant/plugins/{}.about", file),
                  fmt::format("build = {}\n", folder_.path("tree").string()));
    folder_.write("bin/cmake", fmt::format("#!/bin/sh\necho \"$@\" >> '{}'\ncp '{}' '{}'\n",
                                           folder_.path("asked").string(), paths::plugin(file), own.string()));
    fs::permissions(folder_.path("bin/cmake"), fs::perms::owner_all);
    return "PATH=" + folder_.path("bin").string() + ":/usr/bin:/bin";
  }
  ProgramFolder folder_;
};

TEST_F(OwnModule, NoProgramIsLinkedToItOrToItsLibraries) {
  std::vector<std::string> programs = {paths::program()};
  for (const auto& entry : fs::directory_iterator(paths::build("libexec/orthant"))) {
    if (entry.path().extension() != ".about") {
      programs.push_back(entry.path().string());
    }
  }
  EXPECT_GT(programs.size(), 10);
  for (const std::string& program : programs) {
    const Result loaded = folder_.command({program}, {"LD_TRACE_LOADED_OBJECTS=1"});
    EXPECT_THAT(loaded.output, HasSubstr("liborthant.so"));
    for (const char* library : {"pcre2", "utf8proc", "sentencepiece", "liborthant_module"}) {
      EXPECT_THAT(loaded.output, Not(HasSubstr(library))) << program;
    }
  }
}

TEST_F(OwnModule, ADamagedOneIsRefusedAndARunThatNeedsNoneDoesNotOpenIt) {
  const Result damaged = prepare_with(module_bytes().substr(0, 100000));
  EXPECT_EQ(damaged.code, 78);
  EXPECT_THAT(damaged.error, AllOf(HasSubstr("cannot load module \"tokenizer\": " + place() + ": cut short or damaged"),
                                   HasSubstr("build this file again, or remove it")));
  folder_.write("c.toml", tiny_config({1, 1}));
  const Result train = folder_.orthant({"train", "c.toml", "--set", "run.steps=1"}, {searched()});
  EXPECT_EQ(train.code, 0) << train.error;
  ASSERT_EQ(folder_.orthant({"data", "prepare", "a.txt", "-o", "b.tok"}, {searched()}).code, 0);
  const Result check = folder_.orthant({"data", "check", "b.tok"}, {searched()});
  EXPECT_EQ(check.code, 0) << check.error;
  const Result train_by_it =
      folder_.orthant({"train", "c.toml", "--set", "data.tokenizer=t/tokenizer.json"}, {searched()});
  EXPECT_EQ(train_by_it.code, 78);
  EXPECT_THAT(train_by_it.error, AllOf(HasSubstr("data.tokenizer"), HasSubstr(place())));
}

TEST_F(OwnModule, OneOfAnotherTreeIsRefused) {
  constexpr std::size_t stamp_size = 80;
  std::string bytes = module_bytes();
  bytes.resize(bytes.size() - stamp_size);
  const std::string note = std::string("tree\0", 5) + build_of_library(), other(note.size() - 5, '0');
  const std::size_t at = bytes.find(note);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at + 5, other.size(), other);
  const Result stale = prepare_with(bytes);
  EXPECT_EQ(stale.code, 78);
  EXPECT_THAT(stale.error,
              HasSubstr(fmt::format("module {} was built with other headers of the tree than liborthant.so "
                                    "({} and {}): build or install both again",
                                    place(), other, build_of_library())));
}

TEST_F(OwnModule, AMissingOneIsNamedAndABuildFolderBuildsItOnce) {
  const std::string library = library_of_its_own();
  const std::string own = folder_.path("lib/orthant/plugins").string() + "/" + file_name;
  const Result missing = prepare({library});
  EXPECT_EQ(missing.code, 78);
  EXPECT_THAT(missing.error,
              AllOf(HasSubstr("no module 'tokenizer' can be loaded. Tried:"), HasSubstr(own + ": no such file"),
                    HasSubstr("Build and install it together with liborthant.so")));

  const std::vector<std::string> environment = {library, "ORTHANT_JOBS=3", builds(file_name)};
  std::vector<std::string> refusing = environment;
  refusing.emplace_back("ORTHANT_NO_BUILD=1");
  EXPECT_THAT(prepare(refusing).error, HasSubstr("ORTHANT_NO_BUILD is set"));
  const Result first = prepare(environment);
  EXPECT_EQ(first.code, 0) << first.error;
  EXPECT_THAT(first.error, HasSubstr("building orthant_module_tokenizer in " + folder_.path("tree").string()));
  fs::remove(folder_.path("a.tok"));
  const Result again = prepare(environment);
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_THAT(lines_of(folder_.path("asked")), testing::ElementsAre("--build " + folder_.path("tree").string() +
                                                                    " --target orthant_module_tokenizer --parallel 3"));
}

TEST_F(OwnModule, APluginThatALaunchLeavesOutIsListedAndBuiltByItsFirstUse) {
  const std::vector<std::string> environment = {library_of_its_own(), builds("liborthant_plugin_encoder_decoder.so")};
  EXPECT_THAT(
      folder_.orthant({"plugins"}, environment).output,
      testing::ContainsRegex("encoder_decoder +liborthant_plugin_encoder_decoder.so  .its first use builds it"));
  folder_.write("c.toml", "[data]\nsource = \"rewriting\"\n[model]\nkind = \"t5\"\n[plugins.encoder_decoder]\n");
  const Result first = folder_.orthant({"config", "c.toml"}, environment);
  EXPECT_EQ(first.code, 0) << first.error;
  EXPECT_THAT(first.error, HasSubstr("building orthant_plugin_encoder_decoder in "));
  const Result again = folder_.orthant({"config", "c.toml"}, environment);
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_EQ(lines_of(folder_.path("asked")).size(), 1u);
}

}  // namespace
}  // namespace orthant::run_test::own_module_test
