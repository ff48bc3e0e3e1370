// Commands that are programs of their own: of libexec, of PATH, and the examples of both languages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "apps/verify/verify.h"
#include "core/base/build.h"
#include "core/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A folder of PATH with commands of its own, before all others.
class Commands : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_.path("bin")); }
  void add(const std::string& name, const std::string& script, bool runs = true) {
    folder_.write("bin/orthant-" + name, "#!/bin/sh\n" + script);
    if (runs) {
      fs::permissions(folder_.path("bin/orthant-" + name), fs::perms::owner_all);
    }
  }
  Result orthant(const std::vector<std::string>& words) const {
    return folder_.orthant(words, {"PATH=" + folder_.path("bin").string() + ":/usr/bin:/bin"});
  }
  ProgramFolder folder_;
};

TEST_F(Commands, OneOfPathGetsItsWordsAndGivesItsExitCode) {
  add("mine", "printf '<%s>' \"$@\"; exit 7\n");
  const Result result = orthant({"mine", "--set", "a b", "", "--help"});
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(result.output, "<--set><a b><><--help>");
  EXPECT_THAT(orthant({"--help"}).output, AllOf(HasSubstr("  mine"), HasSubstr("Others that were found")));
}

TEST_F(Commands, BuiltInOnesAndThoseOfThisBuildComeFirst) {
  add("config", "exit 9\n");
  add("verify", "exit 9\n");
  EXPECT_EQ(orthant({"config", "--help"}).code, 0);
  EXPECT_THAT(orthant({"verify", "--help"}).output, HasSubstr("Usage: orthant verify"));
  const Result help = orthant({"--help"});
  EXPECT_EQ(help.code, 0) << help.error;
  EXPECT_THAT(help.output, Not(HasSubstr("Others that were found")));
  EXPECT_EQ(orthant({"help"}).output, help.output);
  EXPECT_EQ(orthant({"-h", "verify"}).output, orthant({"verify", "--help"}).output);
}

TEST_F(Commands, AScriptIsRunAsAShellRunsIt) {
  folder_.write("bin/orthant-plain", "echo plain $1\n");  // no "#!"
  fs::permissions(folder_.path("bin/orthant-plain"), fs::perms::owner_all);
  EXPECT_EQ(orthant({"plain", "word"}).output, "plain word\n");
  folder_.write("orthant-here", "#!/bin/sh\necho here\n");
  fs::permissions(folder_.path("orthant-here"), fs::perms::owner_all);
  for (const char* path : {"PATH=/usr/bin:", "PATH=:/usr/bin", "PATH=/nosuch::/usr/bin"}) {
    EXPECT_EQ(folder_.orthant({"here"}, {path}).output, "here\n") << path;  // an empty one is the present folder
  }
}

TEST_F(Commands, WhatIsNoCommandIsNotRun) {
  add("sleeping", "exit 0\n", false);  // it may not be executed
  add("bad;name", "exit 0\n");
  const Result result = orthant({"sleeping"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, HasSubstr("there is no command 'sleeping'"));
  EXPECT_THAT(orthant({"generat"}).error, HasSubstr("did you mean 'generate'?"));
  EXPECT_THAT(orthant({"--help"}).output, AllOf(Not(HasSubstr("sleeping")), Not(HasSubstr("bad;name"))));
}

// A copy of this build's programs, of which files can be taken away and changed.
class BuildCopy : public Commands {
 protected:
  void SetUp() override {
    Commands::SetUp();
    const fs::path program = paths::program();
    fs::create_directories(folder_.path("prefix/bin"));
    fs::create_directories(folder_.path("prefix/libexec/orthant"));
    fs::copy(program, folder_.path("prefix/bin/orthant"));
  }
  fs::path libexec(const std::string& name) const { return folder_.path("prefix/libexec/orthant") / name; }
  Result orthant(const std::vector<std::string>& words, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {folder_.path("prefix/bin/orthant").string()};
    all.insert(all.end(), words.begin(), words.end());
    more.insert(more.end(),
                {"ORTHANT_JOBS=3", "LD_LIBRARY_PATH=" + folder_.path("prefix/lib").string() + ":" + paths::build("lib"),
                 "PATH=" + folder_.path("bin").string() + ":/usr/bin:/bin"});
    return folder_.command(all, more);
  }
};

TEST_F(BuildCopy, WhatIsNotBuiltIsBuiltOnce) {
  // In cmake's place: it is told the folder and the target.
  folder_.write("bin/cmake", "#!/bin/sh\necho \"$@\" >> '" + folder_.path("asked").string() +
                                 "'\nprintf '#!/bin/sh\\necho built\\n' > '" + libexec("orthant-later").string() +
                                 "'\nchmod +x '" + libexec("orthant-later").string() + "'\n");
  fs::permissions(folder_.path("bin/cmake"), fs::perms::owner_all);
  fs::create_directory(folder_.path("tree"));
  std::ofstream(libexec("orthant-later.about"))
      << "group = Use a model\nabout = Comes later\nbuild = " << folder_.path("tree").string() << "\n";
  EXPECT_THAT(orthant({"--help"}).output, HasSubstr("Comes later"));
  EXPECT_FALSE(fs::exists(folder_.path("asked")));
  const Result first = orthant({"later"});
  EXPECT_EQ(first.output, "built\n");
  EXPECT_THAT(first.error, HasSubstr("building orthant-later"));
  EXPECT_EQ(orthant({"later"}).output, "built\n");
  EXPECT_THAT(lines_of(folder_.path("asked")), testing::ElementsAre("--build " + folder_.path("tree").string() +
                                                                    " --target orthant-later --parallel 3"));
}

TEST_F(BuildCopy, OneThatIsOlderThanTheLibraryIsBuiltAgainUnderTheLock) {
  folder_.write("bin/cmake", "#!/bin/sh\nls -l /proc/$$/fd | grep -o '[.]lock$' >> '" + folder_.path("asked").string() +
                                 "'\ntouch '" + libexec("orthant-later").string() + "'\n");
  fs::permissions(folder_.path("bin/cmake"), fs::perms::owner_all);
  std::ofstream(libexec("orthant-later")) << "#!/bin/sh\necho ran\n";
  fs::permissions(libexec("orthant-later"), fs::perms::owner_all);
  std::ofstream(libexec("orthant-later.about")) << "build = " << folder_.path("tree").string() << "\n";
  EXPECT_EQ(orthant({"later"}).output, "ran\n");
  EXPECT_FALSE(fs::exists(folder_.path("asked")));
  fs::last_write_time(libexec("orthant-later"),
                      fs::last_write_time(paths::build("lib/liborthant.so.0")) - std::chrono::hours(1));
  EXPECT_EQ(orthant({"later"}).output, "ran\n");
  EXPECT_EQ(orthant({"later"}).output, "ran\n");
  EXPECT_THAT(lines_of(folder_.path("asked")), testing::ElementsAre(".lock"));
  fs::remove(libexec("orthant-later"));
  EXPECT_THAT(orthant({"later"}, {"ORTHANT_NO_BUILD=1"}).error, HasSubstr("ORTHANT_NO_BUILD is set"));
}

TEST_F(BuildCopy, ABuildThatFailsSaysWhy) {
  folder_.write("bin/cmake", "#!/bin/sh\necho the compiler has no memory\nexit 1\n");
  fs::permissions(folder_.path("bin/cmake"), fs::perms::owner_all);
  std::ofstream(libexec("orthant-later.about"))
      << "about = Comes later\nbuild = " << folder_.path("tree").string() << "\n";
  const Result result = orthant({"later"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error,
              AllOf(HasSubstr("orthant-later could not be built"), HasSubstr("the compiler has no memory")));
}

TEST_F(BuildCopy, OneThatWasBuiltWithOtherHeadersSaysSo) {
  fs::create_directory(folder_.path("prefix/lib"));
  std::ifstream in(paths::build("lib/liborthant.so.0"), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::string hash = build_of_library();
  const std::size_t at = bytes.find(hash);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, hash.size(), std::string(hash.size(), '0'));
  std::ofstream(folder_.path("prefix/lib/liborthant.so.0"), std::ios::binary) << bytes;
  fs::copy(fs::path(paths::program()).parent_path().parent_path() / "libexec/orthant/orthant-verify",
           libexec("orthant-verify"));
  const Result result = orthant({"verify", "--help"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error,
              AllOf(HasSubstr("built with other headers"), HasSubstr(hash), HasSubstr("0000000000000000")));
}

TEST_F(Commands, CompletionOfBashKnowsWordsAndRunsNothingOfOthers) {
  add("wipe", "touch '" + folder_.path("ran").string() + "'\n");
  const std::string path =
      folder_.path("bin").string() + ":" + fs::path(paths::program()).parent_path().string() + ":/usr/bin:/bin";
  folder_.write("try", "source '" + paths::source("scripts/completion/orthant.bash") +
                           "'\nCOMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))\n_orthant\necho \"${COMPREPLY[*]}\"\n");
  const auto completed = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"bash", folder_.path("try").string(), "orthant"});
    return folder_.command(words, {"PATH=" + path}).output;
  };
  EXPECT_EQ(completed({"gener"}), "generate\n");
  EXPECT_EQ(completed({"orth"}), "\n");  // which stands in the examples of --help
  EXPECT_EQ(completed({"wi"}), "wipe\n");
  EXPECT_EQ(completed({"data", "tok"}), "tokenizer\n");
  EXPECT_EQ(completed({"data", "tokenizer", "--vocab"}), "--vocab-size\n");
  EXPECT_EQ(completed({"verify", "my.toml", "--ke"}), "--keep\n");
  EXPECT_EQ(completed({"wipe", "--f"}), "\n");
  EXPECT_FALSE(fs::exists(folder_.path("ran")));
}

// By a tab on a terminal of its own.
TEST_F(Commands, CompletionOfZshIsThatOfBash) {
  if (folder_.command({"zsh", "--version"}).code != 0) {
    GTEST_SKIP() << "zsh is not installed";
  }
  const std::string path = fs::path(paths::program()).parent_path().string() + ":/usr/bin:/bin";
  const Result result = folder_.command(
      {"python3", paths::source("tests/commands/complete_in_zsh.py"), paths::source("scripts/completion"),
       "orthant gener", "orthant data tok", "orthant verify my.toml --ke", "orthant bench step --warm"},
      {"PATH=" + path});
  EXPECT_EQ(
      result.output,
      "orthant generate \northant data tokenizer \northant verify my.toml --keep \northant bench step --warmup \n")
      << result.error;
}

// A line that is still being written is told once it is whole, and one of a step that was told before is not.
TEST_F(Commands, TheExampleInPythonWatchesARun) {
  fs::create_directory(folder_.path("a"));
  folder_.write("a/metrics.jsonl",
                "{\"step\": 1, \"loss\": 5.5, \"tokens_per_second\": 1500}\n{\"step\": 2, \"loss\": 4");
  const std::string variables = "PATH=" + paths::source("examples/commands") + ":/usr/bin:/bin";
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::ofstream(folder_.path("a/metrics.jsonl"), std::ios::app)
        << ".25, \"tokens_per_second\": 1500, \"validation_loss\": 4.5}\n";
  });
  const Result result = folder_.orthant({"watch", "a", "--steps", "2"}, {variables});
  writer.join();
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.output,
            "step 1  loss 5.5000  1.5k tokens/s\nstep 2  loss 4.2500  validation 4.5000  1.5k tokens/s\n");
  EXPECT_EQ(folder_.orthant({"watch", "missing"}, {variables}).code, 1);
  EXPECT_EQ(folder_.orthant({"watch", "a", "--step", "2"}, {variables}).code, 2);
}

TEST_F(Commands, TheExampleInPythonPrintsLosses) {
  for (const char* run : {"a", "b"}) {
    fs::create_directory(folder_.path(run));
  }
  folder_.write("a/metrics.jsonl", "{\"step\": 1, \"loss\": 5.5}\n{\"step\": 2, \"loss\": 4.25}\n{\"ste");
  folder_.write("b/metrics.jsonl", "{\"step\": 2, \"loss\": 3.125}\n{\"note\": 1}\n");
  const Result result =
      folder_.orthant({"losses", "a", "b"}, {"PATH=" + paths::source("examples/commands") + ":/usr/bin:/bin"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.output,
            "    step                a                b\n"
            "       1           5.5000                -\n"
            "       2           4.2500           3.1250\n");
}

TEST_F(Commands, TheExampleInCppWritesTheGradientsThatVerifyCompares) {
  folder_.write("c.toml", tiny_config({.data = 2, .expert = 2}));
  const fs::path folder = fs::path(paths::out_of_tree("lion")).parent_path() / "commands";
  const Result result =
      folder_.orthant({"gradients", "c.toml", "norms.txt"}, {"PATH=" + folder.string() + ":/usr/bin:/bin"});
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("2 ranks\nstep 1 "));
  std::map<std::string, double> norms;  // "STEP NAME"
  for (const std::string& line : lines_of(folder_.path("norms.txt"))) {
    const std::size_t last = line.rfind(' ');
    norms[line.substr(0, last)] = std::stod(line.substr(last + 1));
  }
  const fs::path back = fs::current_path();
  fs::current_path(folder_.path());
  const Config config = load_config("c.toml", {}, keys_of_plugin, kinds_of_plugin, check_layout);
  const Snapshot reference = take_snapshot(one_rank(config), 1);
  fs::current_path(back);
  int compared = 0;
  for (const auto& [name, gradient] : reference.gradients[0]) {
    double sum = 0;
    for (const float value : gradient) {
      sum += static_cast<double>(value) * value;
    }
    ASSERT_TRUE(norms.contains("0 " + name)) << name;
    EXPECT_NEAR(norms["0 " + name], std::sqrt(sum), 1e-4 * std::sqrt(sum) + 1e-7) << name;
    ++compared;
  }
  EXPECT_GT(compared, 10);
  EXPECT_EQ(norms.size(), 10u * reference.gradients[0].size());
}

}  // namespace
}  // namespace orthant::run_test
