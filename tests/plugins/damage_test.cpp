// Libraries that are cut short or damaged are refused from their file: the dynamic linker would die of most of them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/library_note.h>

#include <algorithm>
#include <random>

#include "core/base/keyed_hash.h"
#include "core/modules/module.h"
#include "core/modules/read_library.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::damage_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t stamp_size = 80;

std::string whole() {
  return launch_test::read_file(paths::plugin("liborthant_plugin_template.so"));
}
std::string without_stamp() {
  const std::string file = whole();
  return file.substr(0, file.size() - stamp_size);
}
std::string refusal(const std::string& content) {
  const std::string error = test::error_of([&] { read_library(content); });
  return error == "no error" ? "" : error;
}

TEST(Damage, AWholeLibrarySaysWhatItIs) {
  for (const std::string& content : {whole(), without_stamp()}) {
    const auto note = read_library(content);
    ASSERT_TRUE(note.has_value());
    EXPECT_EQ(note->kind, "plugin");
    EXPECT_EQ(note->abi, std::uint32_t{ORTHANT_ABI});
    EXPECT_EQ(note->build, ORTHANT_BUILD);
  }
}

TEST(Damage, TheNoteSurvivesStripAndTheLinkersSweep) {
  const std::string small = paths::build("tests/plugins/fixtures/liborthant_plugin_small.so");
  EXPECT_LT(std::filesystem::file_size(small), whole().size());
  EXPECT_STREQ(open_module("plugin", small).entry->name, "template");
}

#if defined(__x86_64__)
// Its notes are aligned to 8, so is where a descriptor begins: not its size.
TEST(Damage, OneOfACompilerThatProtectsJumpsIsSound) {
  const std::string file = paths::build("tests/plugins/fixtures/liborthant_plugin_cet.so");
  EXPECT_STREQ(open_module("plugin", file).entry->name, "template");
}
#endif

TEST(Damage, EveryLengthIsRefused) {
  std::mt19937_64 random(1);
  for (const std::string& content : {whole(), without_stamp()}) {
    std::vector<std::size_t> lengths = {0, 1, 63, 64, content.size() - 1, content.size() - 64};
    for (int i = 0; i < 200; ++i) {
      lengths.push_back(random() % content.size());
    }
    for (const std::size_t length : lengths) {
      const bool stamp_alone_is_gone = length == without_stamp().size();
      EXPECT_TRUE(stamp_alone_is_gone || !refusal(content.substr(0, length)).empty()) << length;
    }
  }
}

TEST(Damage, EveryFlippedBitAndZeroedPageIsRefused) {
  std::mt19937_64 random(2);
  const std::string content = whole();
  for (int i = 0; i < 200; ++i) {
    std::string damaged = content;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    EXPECT_NE(refusal(damaged), "");
    damaged = content;
    damaged[random() % 64] = static_cast<char>(random());
    EXPECT_TRUE(damaged == content || !refusal(damaged).empty());
  }
  for (std::size_t page = 0; page + 4096 <= content.size(); page += 4096) {
    std::string damaged = content;
    std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(page), 4096, '\0');
    EXPECT_TRUE(damaged == content || !refusal(damaged).empty()) << page;
  }
}

TEST(Damage, MoreBytesThanWereBuiltAreRefused) {
  EXPECT_THAT(refusal(whole() + "x"), HasSubstr("81 bytes behind its end are no whole checksum"));
  EXPECT_THAT(refusal(without_stamp() + "x"), HasSubstr("1 bytes behind its end"));
}

TEST(Damage, TheRefusalNamesTheFileAndSaysWhatToDo) {
  const ProgramFolder folder;
  const auto said = [&](const std::string& content) {
    folder.write("p.so", content);
    folder.write("c.toml", tiny_config({1, 1}) + "[plugins.template]\npath = \"p.so\"\n");
    const Result result = folder.orthant({"train", "c.toml"});
    EXPECT_EQ(result.code, 78) << result.error;
    EXPECT_THAT(result.error, HasSubstr("cannot load plugin " + folder.path("p.so").string() + ": "));
    return result.error;
  };
  EXPECT_THAT(said(whole().substr(0, 20000)), HasSubstr("cut short or damaged: "));
  std::string flipped = whole();
  flipped[flipped.size() / 2] ^= 1;
  EXPECT_THAT(said(flipped),
              AllOf(HasSubstr("its content is not what was built: SHA-256 "), HasSubstr("copy it or build it again")));
}

TEST(Damage, TheChecksumIsThatOfTheStandard) {
  EXPECT_EQ(sha256_hex(std::string_view("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(std::string_view("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string_view("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace orthant::run_test::damage_test
