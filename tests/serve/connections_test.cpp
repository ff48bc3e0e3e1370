// Heads of requests that are too long, too slow or read in two ways, clients that have said all they say, and requests
// that ask for a great deal: bytes over sockets.
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "tests/serve/served_model.h"

namespace orthant::serve_test {
namespace {

using launch_test::eventually;
using testing::HasSubstr;

class Connections : public ServedModel {
 protected:
  // More than can be answered while a test runs.
  static json endless(int n, bool stream) {
    return {{"prompt", "The "}, {"max_tokens", 900'000}, {"n", n}, {"stream", stream}, {"temperature", 1.0}};
  }
  static std::string asking(const json& asked) { return request_text("POST", "/v1/completions", asked.dump()); }
  static std::string with_headers(const std::string& headers, const std::string& body = R"({"prompt":"a"})") {
    return "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n" + headers + "\r\n" +
           body;
  }
};

TEST_F(Connections, AHeadIsBoundedInSize) {
  serve();
  EXPECT_EQ(send("GET /health HTTP/1.1\r\nX: " + std::string(7000, 'a') + "\r\n\r\n").status, 200);
  const auto refused = [&](const std::string& start, const std::string& more, int status) {
    Connection endless(port_, 5);
    endless.send(start);
    // A megabyte, then silence: what is not refused by then never is.
    for (std::size_t sent = 0; sent < (1 << 20) && endless.send(more); sent += more.size()) {
    }
    const Reply reply = parse_reply(endless.read());
    EXPECT_EQ(reply.status, status) << start;
    EXPECT_THAT(reply.body, HasSubstr("\"error\"")) << start;
  };
  refused("GET /health HTTP/1.1\r\n", "Name: value\r\n", 431);
  refused("GET /health HTTP/1.1\r\nName: ", "aaaaaaaaaaaaa", 431);
  refused("GET /", "aaaaaaaaaaaaa", 414);
  const auto of_line = [&](std::size_t bytes) {
    return send("GET /health HTTP/1.1\r\nX: " + std::string(bytes - 3, 'a') + "\r\n\r\n").status;
  };
  EXPECT_EQ(of_line(8190), 200);
  EXPECT_EQ(of_line(8191), 431);
  EXPECT_EQ(get("/health").status, 200);
}

// One that sends a byte from time to time was patient for ever.
TEST_F(Connections, AHeadIsBoundedInTime) {
  serve();
  Connection slow(port_, 5);
  slow.send("GET /health HTTP/1.1\r\n");
  for (int i = 0; i < 150 && !slow.anything(); ++i) {
    slow.send("a");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(parse_reply(slow.read()).status, 408);
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(Connections, ABodyWhoseEndCanBeReadInTwoWaysIsRefused) {
  serve();
  const std::string body = R"({"prompt":"a"})", length = "Content-Length: 14\r\n";
  ASSERT_EQ(body.size(), 14U);
  ASSERT_EQ(send(with_headers(length)).status, 200);
  for (const std::string& headers : {length + length,
                                     length + "content-length: 13\r\n",
                                     length + "Transfer-Encoding: chunked\r\n",
                                     std::string("Transfer-Encoding: chunked\r\ncontent-length: 14\r\n"),
                                     std::string("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
                                     std::string("Transfer-Encoding: gzip, chunked\r\n"),
                                     std::string("Transfer-Encoding: identity\r\n"),
                                     std::string("Content-Length: 14, 14\r\n"),
                                     std::string("Content-Length: +14\r\n"),
                                     std::string("Content-Length: -14\r\n"),
                                     std::string("Content-Length: 14abc\r\n"),
                                     std::string("Content-Length:\r\n"),
                                     std::string("Content-Length: 99999999999999999999\r\n"),
                                     std::string("Content-Length : 14\r\n"),
                                     length + "X: a\r\n b\r\n",
                                     length + "X: a\nb\r\n",
                                     length + "X: a\rb\r\n",
                                     length + "no colon\r\n",
                                     length + ": no name\r\n",
                                     length + std::string("X: \0\r\n", 6)}) {
    const Reply reply = send(with_headers(headers));
    EXPECT_EQ(reply.status, 400) << headers << reply.body;
    EXPECT_THAT(reply.body, HasSubstr("the request's head: ")) << headers;
  }
  const Reply chunks = send(with_headers("transfer-encoding: Chunked\r\n", "E\r\n" + body + "\r\n0\r\n\r\n"));
  EXPECT_EQ(chunks.status, 200) << chunks.body;
}

TEST_F(Connections, AClientThatSendsNothingMoreIsAnswered) {
  serve({"--batch", "1", "--context", "1000000"});
  for (const bool stream : {false, true}) {
    // It has to wait, and so is looked after more than once.
    Connection before(port_);
    before.send(asking(endless(1, true)));
    EXPECT_THAT(before.read("data: "), HasSubstr("200 OK"));
    Connection half(port_);
    half.send(asking({{"prompt", "The "}, {"max_tokens", 30}, {"stream", stream}}));
    half.sends_no_more();
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    { const Connection ends = std::move(before); }
    std::string said = half.read();
    constexpr std::string_view interim = "HTTP/1.1 100 Continue\r\n\r\n";
    if (said.starts_with(interim)) {
      said.erase(0, interim.size());
    }
    const Reply reply = parse_reply(said);
    EXPECT_EQ(reply.status, 200) << said;
    EXPECT_THAT(reply.body, HasSubstr(stream ? "[DONE]" : "\"usage\"")) << said;
  }
  Connection health(port_);
  health.send(request_text("GET", "/health"));
  health.sends_no_more();
  EXPECT_EQ(parse_reply(health.read()).status, 200);
}

// The first thing it is told finds it there, and its end is one that it has announced already.
TEST_F(Connections, AClientThatSaidSoReadsAndThenLeavesFreesItsPlace) {
  serve({"--batch", "1", "--max-tokens", "1000000"});
  {
    Connection leaves(port_, 10);
    leaves.send(asking(endless(1, false)));
    leaves.sends_no_more();
    EXPECT_EQ(leaves.read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  }
  Connection next(port_, 10);
  next.send(asking({{"prompt", "The "}, {"max_tokens", 2}}));
  EXPECT_EQ(parse_reply(next.read()).status, 200);
}

// It is told from one that waits by what it answers.
TEST_F(Connections, AClientThatSaidSoAndThenLeavesFreesItsPlace) {
  serve({"--batch", "1", "--max-tokens", "1000000"});
  for (const bool stream : {false, true}) {
    {
      Connection leaves(port_);
      leaves.send(asking(endless(1, stream)));
      leaves.sends_no_more();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    EXPECT_EQ(complete({{"prompt", "The "}, {"max_tokens", 2}})["object"], "text_completion") << stream;
  }
}

TEST_F(Connections, ARequestForManyAnswersLeavesPlacesToOthers) {
  serve({"--batch", "2", "--max-tokens", "1000000"});
  const auto many = [](int max_tokens) {
    return json{{"prompt", "The "}, {"max_tokens", max_tokens}, {"n", 128}, {"temperature", 1.0}};
  };
  {
    Connection large(port_);
    large.send(asking(many(1000)));                               // two of its answers end soon, all of them do not
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // else it may come second
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(complete({{"prompt", "The "}, {"max_tokens", 100}})["object"], "text_completion");
    }
    EXPECT_FALSE(large.anything()) << "the small ones came after the large one's end";
  }
  EXPECT_EQ(complete(many(10))["choices"].size(), 128U);
}

TEST_F(Connections, ARequestForOneAnswerMayWaitWhereManyDo) {
  serve({"--batch", "2", "--max-tokens", "1000000"});
  std::vector<Connection> large;
  for (const int n : {128, 128, 128, 128, 2}) {  // 512 may wait, and 2 have places
    large.emplace_back(port_);
    large.back().send(asking(endless(n, true)));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // in this order, so that none is refused
  }
  EXPECT_TRUE(eventually([&] { return post(endless(3, false).dump()).status == 503; }));
  Connection one(port_);
  one.send(asking({{"prompt", "The "}, {"max_tokens", 2}}));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_FALSE(one.anything()) << "it was refused, or there was a place";
  large.clear();
  EXPECT_EQ(parse_reply(one.read()).status, 200);
}

}  // namespace
}  // namespace orthant::serve_test
