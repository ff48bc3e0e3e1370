// The head of an HTTP request. One that is taken has one length of a body at most, by a reader of its own.
#include "apps/serve/request_head.h"

#include <cstdlib>

#include "apps/serve/api_error.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

int run(const std::uint8_t* data, std::size_t size) {
  const std::string received(reinterpret_cast<const char*>(data), size);
  std::size_t head = 0;
  try {
    head = size_of_head(received);
    if (head == 0) {
      return 0;
    }
    read_head(std::string_view(received).substr(0, head));
  } catch (const ApiError&) {
    return 0;
  }
  std::string lower = received.substr(0, head);
  for (char& c : lower) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  int lengths = 0;
  for (const std::string name : {"\ncontent-length", "\ntransfer-encoding"}) {
    for (std::size_t at = lower.find(name); at != std::string::npos; at = lower.find(name, at + 1)) {
      const char next = lower[at + name.size()];
      lengths += next == ':' || next == ' ' || next == '\t' || next == '\r' ? 1 : 0;
    }
  }
  if (lengths > 1 || !lower.ends_with("\r\n\r\n")) {
    std::abort();
  }
  return 0;
}

std::vector<std::string> seeds() {
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: here\r\n";
  return {"GET /health HTTP/1.1\r\n\r\n",
          post + "Content-Length: 14\r\n\r\n{\"prompt\":\"a\"}",
          post + "Content-Length: 14\r\ncontent-length: 14\r\n\r\n",
          post + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
          post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
          post + "Content-Length : 14\r\n\r\n",
          post + "X: a\r\n Content-Length: 14\r\n\r\n",
          "\r\n\r\n",
          "GET / HTTP/1.1\r\nX: " + std::string(20000, 'a')};
}

}  // namespace

const Target request_head = {"request_head", run, seeds};

}  // namespace orthant::fuzz
