// What a request without a token may cost, and answers to those whose bodies are not read to their end.
#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "tests/serve/served_model.h"

namespace orthant::serve_test {
namespace {

using testing::HasSubstr;

constexpr std::size_t mib = 1 << 20;
constexpr const char* in_chunks = "Transfer-Encoding: chunked\r\n";

class Bodies : public ServedModel {
 protected:
  // The most memory that the server has had, in bytes.
  std::size_t peak() const {
    std::ifstream status("/proc/" + std::to_string(server_->pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) {
        return std::strtoull(line.c_str() + 6, nullptr, 10) << 10;
      }
    }
    ADD_FAILURE() << "no VmHWM";
    return 0;
  }
  void serve_with_token() {
    folder_.write("secret", "s3cret\n");
    std::filesystem::permissions(folder_.path("secret"), std::filesystem::perms::owner_read);
    serve({"--token-file", "secret"});
    EXPECT_EQ(send(request_text("POST", "/v1/completions", "{}")).status, 401);
  }
  static std::string chunk(std::size_t bytes) { return fmt::format("{:x}\r\n{}\r\n", bytes, std::string(bytes, 'a')); }
};

TEST_F(Bodies, AreBoundedOnEveryPath) {
  serve_with_token();
  const std::size_t before = peak();
  for (const char* path : {"/%0A", "/%0D", "/a%0Ab", "/nowhere"}) {
    for (const char* method : {"POST", "PUT", "PATCH"}) {
      Connection chunks(port_, 20);
      chunks.send(request_text(method, path, "", in_chunks));
      for (std::size_t sent = 0; sent < 64 * mib && chunks.send(chunk(mib)); sent += mib) {
      }
      chunks.send("0\r\n\r\n");
      chunks.read();
      EXPECT_LT(peak() - before, 40 * mib) << method << path;
    }
  }
}

TEST_F(Bodies, AreNotInflated) {
  serve_with_token();
  for (const char* path : {"/nowhere", "/v1/completions"}) {
    for (const char* encoding : {"gzip", "br", "gzip, identity"}) {
      const Reply reply = send(request_text("POST", path, "zeros", fmt::format("Content-Encoding: {}\r\n", encoding)));
      EXPECT_EQ(reply.status, 415) << path << encoding;
      EXPECT_THAT(reply.body, HasSubstr("not compressed")) << path << encoding;
    }
  }
}

TEST_F(Bodies, SizesOfChunksAreBounded) {
  serve_with_token();
  const std::size_t before = peak();
  Connection endless(port_, 20);
  endless.send(request_text("POST", "/v1/completions", "", in_chunks) + "5;");
  for (std::size_t sent = 0; sent < 64 * mib && endless.send(std::string(mib, 'a')); sent += mib) {
  }
  EXPECT_LT(peak() - before, 40 * mib);
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(Bodies, AnswersAreNotMultipliedByRanges) {
  serve();
  std::string ranges = "bytes=0-";
  for (int i = 0; i < 1000; ++i) {
    ranges += ",0-";
  }
  for (const std::string& range : {ranges, std::string("bytes=0-1"), std::string("nonsense")}) {
    for (const Reply& reply : {send(request_text("GET", "/health", "", "range: " + range + "\r\n")),
                               send(request_text("POST", "/v1/completions", R"({"prompt":"a"})",
                                                 "Content-Type: application/json\r\nRange: " + range + "\r\n"))}) {
      EXPECT_EQ(reply.status, 400);
      EXPECT_LT(reply.body.size(), 1000U);
      EXPECT_THAT(reply.json()["error"].value("message", ""), HasSubstr("Range"));
    }
  }
}

// A socket that is closed before its client's bytes are read refuses the next ones, and may take the answer with it.
TEST_F(Bodies, ThatAreNotReadTakeNoAnswerWithThem) {
  serve();
  const auto expect = [&](const std::string& request, int status) {
    Connection to(port_, 20);
    // Its last pieces come when the answer is on its way.
    to.send(request.substr(0, request.size() - 2));
    for (const char last : request.substr(request.size() - 2)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_TRUE(to.send(std::string(1, last))) << request.substr(0, 60);
    }
    EXPECT_EQ(parse_reply(to.read()).status, status) << request.substr(0, 60);
  };
  const std::string body(mib, 'a');
  expect(request_text("GET", "/health", body), 200);
  expect(request_text("DELETE", "/v1/completions", body), 405);
  expect(request_text("POST", "/" + std::string(2000, 'a'), body), 414);
  expect(request_text("POST", "/v1/completions", body, "Content-Type: multipart/form-data; boundary=x\r\n"), 415);
  std::string chunks = request_text("POST", "/v1/completions", "", in_chunks);
  for (int i = 0; i < 6; ++i) {
    chunks += chunk(mib);
  }
  expect(chunks + "0\r\n\r\n", 413);
}

}  // namespace
}  // namespace orthant::serve_test
