// Clients of `orthant serve` that go away, wait or never finish, a model that fails, and the end of the server.
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "tests/serve/served_model.h"

namespace orthant::serve_test {
namespace {

using launch_test::eventually;
using testing::HasSubstr;

class Lifetimes : public ServedModel {
 protected:
  static std::string asking(const json& asked) { return request_text("POST", "/v1/completions", asked.dump()); }
  static constexpr int longest = 900'000;  // none ends by itself
  // More than can be answered while a test runs.
  static json endless(int n, bool stream, int max_tokens = 4000) {
    return {{"prompt", "The "}, {"max_tokens", max_tokens}, {"n", n}, {"stream", stream}, {"temperature", 1.0}};
  }
};

TEST_F(Lifetimes, AClientThatGoesAwayFreesItsPlaces) {
  serve({"--batch", "2", "--max-tokens", "1000000"});
  const std::string small = asking({{"prompt", "The "}, {"max_tokens", 2}});
  for (const bool stream : {false, true}) {
    std::vector<Connection> clients;
    // 512 may wait, and 2 have places.
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back(port_);
      clients.back().send(asking(endless(128, stream, longest)));
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the others come first, else one of them is refused
    ASSERT_TRUE(eventually([&] {
      Connection more(port_, 1);
      more.send(asking(endless(3, true, longest)));
      const Reply reply = parse_reply(more.read("\r\n\r\n") + "\r\n\r\n");
      return reply.status == 503 && reply.head.find("Retry-After: 1") != std::string::npos;
    }));
    clients.clear();
    EXPECT_TRUE(eventually([&] { return send(small).status == 200; })) << stream;
  }
  EXPECT_EQ(end(), 0);
}

TEST_F(Lifetimes, AClientThatSendsOrReadsNothingHoldsUpNobody) {
  serve({"--batch", "2"});
  const json asked = {{"prompt", "The "}, {"max_tokens", 8}, {"temperature", 0}};
  const std::string expected = text(asked), whole = asking(asked);
  std::vector<Connection> half;
  for (std::size_t i = 0; i < 40; ++i) {
    half.emplace_back(port_);
    half.back().send(whole.substr(0, i * whole.size() / 40));
  }
  for (int i = 0; i < 2; ++i) {
    half.emplace_back(port_);  // reads nothing of a long stream
    json long_one = endless(1, true);
    long_one["logprobs"] = 20;
    half.back().send(asking(long_one));
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(text(asked), expected);
  }
  EXPECT_EQ(end(), 0) << "whoever is still connected";
}

TEST_F(Lifetimes, ASignalEndsItWhateverItDoes) {
  serve();
  EXPECT_EQ(end(), 0) << "idle";
  EXPECT_THAT(server_->output(), HasSubstr("ended"));
  serve({"--batch", "4"});
  Connection streams(port_), waits(port_);
  streams.send(asking(endless(100, true)));
  EXPECT_THAT(streams.read("data: "), HasSubstr("200 OK"));
  waits.send(asking(endless(100, false)));
  std::string streamed;
  std::thread reader([&] { streamed = streams.read(); });
  EXPECT_EQ(end(), 0);
  reader.join();
  EXPECT_THAT(streamed.substr(streamed.size() - std::min<std::size_t>(500, streamed.size())),
              HasSubstr("the server is ending"));
  const Reply refused = parse_reply(waits.read());
  EXPECT_TRUE(refused.status == 503 || refused.status == 0) << refused.status << ": it may not have been read yet";
  serve();
  kill(server_->pid(), SIGTERM);
  EXPECT_EQ(server_->wait(), 0);
}

TEST_F(Lifetimes, AnAnswerThatIsShortEndsInTheGrace) {
  serve();
  Connection streams(port_);
  streams.send(asking({{"prompt", "The "}, {"max_tokens", 200}, {"stream", true}}));
  EXPECT_THAT(streams.read("data: "), HasSubstr("200 OK"));
  EXPECT_EQ(end(), 0);
  EXPECT_THAT(streams.read(), HasSubstr("[DONE]"));
}

TEST_F(Lifetimes, ASecondSignalEndsItAtOnce) {
  serve();
  Connection streams(port_);
  streams.send(asking(endless(100, true)));
  EXPECT_THAT(streams.read("data: "), HasSubstr("200 OK"));
  kill(server_->pid(), SIGINT);
  ASSERT_TRUE(eventually([&] { return post("{\"prompt\":\"a\"}").status == 503; }));
  kill(server_->pid(), SIGTERM);
  EXPECT_EQ(server_->wait(), 128 + SIGTERM) << "the signal that ends it";
}

TEST_F(Lifetimes, ItsHealthIsToldWhileAllPlacesAreTaken) {
  serve({"--batch", "2", "--max-tokens", "1000000"});
  std::vector<Connection> clients;
  for (int i = 0; i < 128; ++i) {
    clients.emplace_back(port_);
    clients.back().send(asking(endless(1, i >= 64, longest)));  // the first are answered, and nobody reads
  }
  // A late one of them may have found its place taken by one of these, which therefore stay too.
  Reply refused;
  for (int i = 0; i < 20 && refused.status != 503; ++i) {
    clients.emplace_back(port_, 1);
    clients.back().send(asking(endless(1, false, longest)));
    refused = parse_reply(clients.back().read());
  }
  ASSERT_EQ(refused.status, 503);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1"));
  EXPECT_THAT(refused.body, HasSubstr("128 completions"));
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(get("/health").status, 200);
    EXPECT_EQ(post(R"({"prompt": "The "})").status, 503);
  }
  clients.clear();
  EXPECT_TRUE(eventually([&] { return post(R"({"prompt": "The ", "max_tokens": 2})").status == 200; }));
  EXPECT_EQ(end(), 0);
}

// The descriptor that a process listens with, as one of this process's; -1: there is none, or it may not be had.
int listening_socket_of(pid_t process) {
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  int found = -1;
  for (int number = 3; number < 64 && found < 0; ++number) {
    const int copy = static_cast<int>(syscall(SYS_pidfd_getfd, handle, number, 0));
    int listens = 0;
    socklen_t size = sizeof listens;
    if (copy >= 0 && getsockopt(copy, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) {
      found = copy;
    } else if (copy >= 0) {
      close(copy);
    }
  }
  close(handle);
  return found;
}

TEST_F(Lifetimes, AServerThatCannotAcceptAnyMoreEndsWithAnError) {
  serve();
  const int socket = listening_socket_of(server_->pid());
  if (socket < 0) {
    GTEST_SKIP() << "the sockets of a child may not be had here";
  }
  Connection streams(port_);
  streams.send(asking({{"prompt", "The "}, {"max_tokens", 100}, {"stream", true}}));
  EXPECT_THAT(streams.read("data: "), HasSubstr("200 OK"));
  shutdown(socket, SHUT_RDWR);
  EXPECT_EQ(server_->wait(), 1);
  EXPECT_THAT(server_->error(), HasSubstr("nothing can be accepted on http://127.0.0.1:"));
  EXPECT_THAT(streams.read(), HasSubstr("[DONE]")) << "what was under way has its grace";
  close(socket);
}

// A tensor of a safetensors file, changed in place.
void change(const std::string& file, const std::string& tensor, const std::function<void(std::vector<float>&)>& how) {
  std::fstream weights(file, std::ios::in | std::ios::out | std::ios::binary);
  std::uint64_t size = 0;
  weights.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  weights.read(header.data(), static_cast<std::streamsize>(size));
  const json entry = json::parse(header).at(tensor), offsets = entry.at("data_offsets");
  ASSERT_EQ(entry.at("dtype"), "F32");
  const std::size_t begin = 8 + size + offsets[0].get<std::size_t>(), end = 8 + size + offsets[1].get<std::size_t>();
  std::vector<float> values((end - begin) / sizeof(float));
  weights.seekg(static_cast<std::streamoff>(begin));
  weights.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(end - begin));
  how(values);
  weights.seekp(static_cast<std::streamoff>(begin));
  weights.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(end - begin));
}

// The first norm overflows for one byte alone: channel 0 is 0 in the embeddings of all others.
void overflow_at(char byte, const std::string& file) {
  constexpr std::size_t width = 32;
  change(file, "model.embed_tokens.weight", [&](std::vector<float>& embedding) {
    ASSERT_EQ(embedding.size(), 256 * width);
    for (std::size_t id = 0; id < 256; ++id) {
      embedding[id * width] = id == static_cast<unsigned char>(byte) ? 10.0F : 0.0F;
    }
  });
  change(file, "model.layers.0.input_layernorm.weight",
         [](std::vector<float>& weight) { weight[0] = std::numeric_limits<float>::max(); });
}

TEST_F(Lifetimes, AnAnswerThatIsNotFiniteFailsAlone) {
  const auto exported = folder_.orthant({"export", "runs/r", "-o", "out"});
  ASSERT_EQ(exported.code, 0) << exported.error;
  overflow_at('Z', folder_.path("out/model.safetensors"));
  serve({"--tokenizer", "bytes"}, "out");
  json good = {{"prompt", "The "}, {"max_tokens", 3000}, {"temperature", 0}};
  const std::string expected = text(good);
  good["stream"] = true;
  Connection beside(port_);
  beside.send(asking(good));
  std::string streamed = beside.read("data: ");  // it is under way
  for (const bool stream : {false, true}) {
    for (const bool echo : {false, true}) {
      const Reply failed = post(
          json{{"prompt", "The Z"}, {"stream", stream}, {"echo", echo}, {"logprobs", echo ? json(3) : json()}}.dump());
      if (stream && echo) {
        EXPECT_THAT(failed.body, HasSubstr("diverged")) << "the prompt's first token may be told before";
      } else {
        EXPECT_EQ(failed.status, 500) << failed.body;
        EXPECT_THAT(failed.json()["error"].value("message", ""), HasSubstr("diverged"));
      }
    }
  }
  streamed += beside.read();
  EXPECT_THAT(streamed, HasSubstr("[DONE]"));
  EXPECT_THAT(streamed, testing::Not(HasSubstr("diverged")));
  good["stream"] = false;
  EXPECT_EQ(text(good), expected);
  EXPECT_EQ(end(), 0);
}

}  // namespace
}  // namespace orthant::serve_test
