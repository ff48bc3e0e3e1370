#include "apps/serve/request_head.h"

#include <algorithm>
#include <optional>
#include <string>

#include "apps/serve/api_error.h"

namespace orthant {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool is_token(char c) {
  return (lower(c) >= 'a' && lower(c) <= 'z') || is_digit(c) ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin, end - begin + 1);
}

[[noreturn]] void refuse_head(const std::string& why) {
  throw ApiError(400, "the request's head: " + why);
}

// Errors: ApiError for one that is there already.
void set_once(std::optional<std::string>& header, std::string_view name, std::string_view value) {
  if (header.has_value()) {
    refuse_head(fmt::format("{} is given a second time: expected one, which says where the body ends", name));
  }
  header = value;
}

int value_of_digit(char c) {
  return is_digit(c) ? c - '0' : lower(c) >= 'a' && lower(c) <= 'f' ? lower(c) - 'a' + 10 : -1;
}

// %41 is A. What is no such code stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? value_of_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? value_of_digit(text[i + 2]) : -1;
    decoded += low >= 0 ? static_cast<char>(high * 16 + low) : text[i];
    i += low >= 0 ? 2 : 0;
  }
  return decoded;
}

void read_request_line(std::string_view line, RequestHead& head) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  const std::string_view version = line.substr(last + 1), method = line.substr(0, first);
  head.of_http_1_0 = version == "HTTP/1.0";
  const bool spoken = head.of_http_1_0 || version == "HTTP/1.1";
  if (!spoken || first == last || method.empty() || !std::all_of(method.begin(), method.end(), is_token)) {
    refuse_head(fmt::format("expected 'METHOD /path HTTP/1.1', found '{}'", clipped(std::string(line))));
  }
  head.method = method;
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.find_first_of(" \t") != std::string_view::npos) {
    refuse_head("a blank in the path");
  }
  head.path = percent_decoded(target.substr(0, target.find('?')));
  if (head.path.size() > longest_path) {
    throw ApiError(414, "the request's path is too long");
  }
}

}  // namespace

std::size_t size_of_head(std::string_view received) {
  const std::string_view head = received.substr(0, longest_head);
  for (std::size_t i = 0; i < head.size(); ++i) {
    if (head[i] != '\n') {
      continue;
    }
    if (i == 0 || head[i - 1] != '\r') {
      refuse_head("a line ends in LF alone: expected CRLF");
    }
    if (i >= 3 && head.substr(i - 3, 2) == "\r\n") {
      return i + 1;
    }
  }
  if (received.size() < longest_head) {
    return 0;
  }
  if (head.find('\n') == std::string_view::npos) {
    throw ApiError(414, "the request's path is too long");
  }
  throw ApiError(
      431, fmt::format("the request's head is longer than {} bytes: send fewer or shorter headers", longest_head));
}

RequestHead read_head(std::string_view head) {
  RequestHead read;
  for (std::size_t i = 0; i < head.size(); ++i) {
    if (head[i] == '\0' || (head[i] == '\r' && (i + 1 == head.size() || head[i + 1] != '\n'))) {
      refuse_head("a NUL, or a CR without an LF");
    }
  }
  std::size_t begin = head.find("\r\n") + 2;
  read_request_line(head.substr(0, begin - 2), read);
  std::optional<std::string> length, encoding;
  for (std::size_t end; (end = head.find("\r\n", begin)) > begin; begin = end + 2) {
    const std::string_view line = head.substr(begin, end - begin), name = line.substr(0, line.find(':'));
    if (line.size() > longest_header) {
      throw ApiError(431, fmt::format("the request's header '{}' is longer than {} bytes", clipped(std::string(name)),
                                      longest_header));
    }
    if (name.size() == line.size() || name.empty() || !std::all_of(name.begin(), name.end(), is_token)) {
      refuse_head(fmt::format("expected 'Name: value', found '{}'", clipped(std::string(line))));
    }
    const std::string_view value = without_blanks(line.substr(name.size() + 1));
    if (same_word(name, "Content-Length")) {
      set_once(length, "Content-Length", value);
      if (value.empty() || value.size() > 15 || !std::all_of(value.begin(), value.end(), is_digit)) {
        refuse_head(fmt::format("Content-Length is '{}': expected a whole number", clipped(std::string(value))));
      }
    } else if (same_word(name, "Transfer-Encoding")) {
      set_once(encoding, "Transfer-Encoding", value);
      if (!same_word(value, "chunked")) {
        refuse_head(fmt::format("Transfer-Encoding is '{}': expected chunked", clipped(std::string(value))));
      }
    } else if (same_word(name, "Range")) {
      refuse_head("Range: answers are not given in parts, leave it out");
    } else if (same_word(name, "Content-Encoding") && !same_word(value, "identity")) {
      throw ApiError(415, fmt::format("the body's Content-Encoding is '{}': send it as it is, not compressed",
                                      clipped(std::string(value))));
    } else if (same_word(name, "Authorization")) {
      read.authorization = value;
    } else if (same_word(name, "Content-Type")) {
      read.content_type = value;
    } else if (same_word(name, "Expect")) {
      read.expects_continue = same_word(value, "100-continue");
    }
  }
  if (length.has_value() && encoding.has_value()) {
    refuse_head("Content-Length and Transfer-Encoding: expected one of them, which says where the body ends");
  }
  read.body = encoding.has_value() ? length_unknown : length.has_value() ? std::stoull(*length) : 0;
  return read;
}

}  // namespace orthant
