// A tiny routed model of bytes behind `orthant serve`, for tests.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/serve/http_client.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::serve_test {

using nlohmann::json;

class ServedModel : public testing::Test {
 protected:
  void SetUp() override {
    signal(SIGINT, SIG_DFL);  // a shell's background jobs ignore it, and so would the server
    folder_.write("text.txt", [] {
      std::string text;
      for (int i = 0; i < 200; ++i) {
        text += "The lazy dog sleeps " + std::to_string(i % 7) + " hours; a caf\xC3\xA9 is open. ";
      }
      return text;
    }());
    folder_.write(
        "c.toml",
        "[run]\nsteps = 30\nname = \"r\"\n[data]\npath = [\"text.txt\"]\nsequence_length = 32\n"
        "[batch]\nsequences = 8\n[model]\nlayers = 2\nd_model = 32\nheads = 2\nactivation = \"swiglu\"\n"
        "[moe]\nexperts = 4\ntop_k = 2\ncapacity_factor = 0\n[optimizer]\nlr = 0.02\nschedule = \"constant\"\n");
    const auto trained = folder_.orthant({"launch", "c.toml"});
    ASSERT_EQ(trained.code, 0) << trained.error;
  }

  // Until it answers.
  void serve(const std::vector<std::string>& more = {}, const std::string& model = "runs/r") {
    std::vector<std::string> words = {paths::program(), "serve", model, "--port", "0", "--threads", "2"};
    words.insert(words.end(), more.begin(), more.end());
    std::filesystem::remove(folder_.path("stdout"));  // of the one before
    server_ = folder_.start(words, {"OMP_WAIT_POLICY=passive"});
    ASSERT_TRUE(launch_test::eventually([&] { return server_->output().find("/v1:") != std::string::npos; }))
        << server_->error();
    const std::string said = server_->output();
    port_ = std::atoi(said.c_str() + said.find("127.0.0.1:") + 10);
  }
  // Its exit code.
  int end() {
    kill(server_->pid(), SIGINT);
    return server_->wait();
  }

  Reply send(const std::string& text) const {
    Connection to(port_);
    EXPECT_TRUE(to.open());
    to.send(text);
    return parse_reply(to.read());
  }
  Reply get(const std::string& path) const { return send(request_text("GET", path)); }
  Reply post(const std::string& body) const { return send(request_text("POST", "/v1/completions", body)); }
  // The answer to what is right.
  json complete(const json& asked) const {
    const Reply reply = post(asked.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json();
  }
  std::string text(const json& asked) const { return complete(asked)["choices"][0]["text"].get<std::string>(); }

  run_test::ProgramFolder folder_;
  std::unique_ptr<launch_test::Running> server_;
  int port_ = 0;
};

}  // namespace orthant::serve_test
