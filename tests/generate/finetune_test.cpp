// docs/guides/finetune.md: its commands, as they stand there, on a tiny published model made on the spot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/utf8.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::finetune_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// All blocks of shell commands of a page, as one script.
std::string commands_of(const fs::path& page) {
  std::istringstream in(launch_test::read_file(page));
  std::string script;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) {
      inside = line == "```sh";
    } else if (inside) {
      script += line + "\n";
    }
  }
  return script;
}

// A byte is a token, by its letter in GPT-2's alphabet; then the two tokens of the template.
std::string tokenizer_json() {
  json vocabulary = json::object();
  char32_t other = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printed = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    std::string letter;
    append_utf8(letter, printed ? static_cast<char32_t>(byte) : other++);
    vocabulary[letter] = byte;
  }
  json added = json::array();
  for (const char* token : {"<|im_start|>", "<|im_end|>"}) {
    added.push_back({{"id", 256 + added.size()},
                     {"content", token},
                     {"special", true},
                     {"normalized", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"single_word", false}});
  }
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return json({{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added},
               {"normalizer", nullptr},
               {"pre_tokenizer", byte_level},
               {"post_processor", nullptr},
               {"decoder", byte_level},
               {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}})
      .dump();
}

// Below those that the system gives by itself, to other tests as well: nobody else takes it until the page serves on
// it.
int free_port() {
  for (int port = 10000 + getpid() % 10000;; port = port < 19999 ? port + 1 : 10000) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free = bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(socket);
    if (free) {
      return port;
    }
  }
}

TEST(FineTuning, ThePageIsTrue) {
  const run_test::ProgramFolder folder;
  fs::create_directories(folder.path("tok"));
  folder.write("tok/tokenizer.json", tokenizer_json());
  folder.write("tok/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "The capital of France is Paris, and 7 * 6 is 42. ";
  }
  folder.write("text.txt", text);
  folder.write("published.toml",
               "[run]\nsteps = 3\nname = \"published\"\n[data]\npath = [\"text.txt\"]\ntokenizer = \"tok\"\n"
               "sequence_length = 32\nvalidation_fraction = 0.0\n[batch]\nsequences = 4\n"
               "[model]\nlayers = 2\nd_model = 16\nheads = 2\nvocab_size = 0\nactivation = \"swiglu\"\nqk_norm = true\n"
               "[moe]\nexperts = 4\ntop_k = 2\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"train", "published.toml"}, {"export", "runs/published", "-o", "published"}}) {
    const auto done = folder.orthant(words);
    ASSERT_EQ(done.code, 0) << done.output << done.error;
  }

  const fs::path program = fs::path(paths::program()).parent_path();
  folder.write("page.sh", "set -e\nPATH=" + program.string() + ":$PATH\nBASE=published\nPORT=" +
                              std::to_string(free_port()) + "\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n" +
                              commands_of(fs::path(paths::source()) / "docs/guides/finetune.md"));
  const auto result = folder.command({"bash", "page.sh"});
  EXPECT_EQ(result.code, 0) << result.error << result.output;
  EXPECT_THAT(result.error, HasSubstr("have the bits of training's forward pass"));
  EXPECT_THAT(result.output, AllOf(HasSubstr("\"object\":\"text_completion\""), HasSubstr("questions")));
  EXPECT_TRUE(fs::exists(folder.path("tuned-model/config.json")));
  EXPECT_TRUE(fs::exists(folder.path("tuned-model/tokenizer.json")));
  EXPECT_THAT(launch_test::read_file(folder.path("tuned-model/chat_template.jinja")), HasSubstr("<|im_start|>"));
  EXPECT_EQ(json::parse(launch_test::read_file(folder.path("tuned-model/generation_config.json")))["eos_token_id"],
            load_tokenizer(folder.path("tok").string())->special().eos.value());
  EXPECT_TRUE(fs::exists(folder.path("tuned-adapter/adapter_model.safetensors")));

  // Adapters beside the weights and merged into them are one model.
  const auto scores = [&](const char* model) {
    const auto answered = folder.orthant({"generate", model, "--prompt", "The capital", "--temperature", "0", "--json",
                                          "--max-tokens", "30", "--log-probabilities"});
    EXPECT_EQ(answered.code, 0) << answered.error;
    return json::parse(answered.output, nullptr, false)["log_probabilities"].get<std::vector<double>>();
  };
  const std::vector<double> apart = scores("runs/tuned"), merged = scores("tuned-model"), before = scores("published");
  ASSERT_EQ(apart.size(), merged.size());
  double learnt = 0;
  for (std::size_t i = 0; i < apart.size(); ++i) {
    EXPECT_NEAR(apart[i], merged[i], 1e-4) << i;
    learnt = std::max(learnt, std::abs(apart[i] - before[i]));
  }
  EXPECT_GT(learnt, 1e-3);
}

}  // namespace
}  // namespace orthant::finetune_test
