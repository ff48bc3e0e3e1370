// The head of an HTTP/1.1 request, read without trust: RFC 9112.
//
// What two programs in a row could read as two different requests is refused, where many would guess: a body's length
// that is given twice or in two ways, lines that do not end as they should, names with blanks.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace orthant {

constexpr std::size_t longest_head = 16 << 10;  // bytes
constexpr std::size_t longest_header = 8190;    // bytes of a header's line without its end
constexpr std::size_t longest_path = 1000;      // bytes
constexpr std::size_t length_unknown = std::numeric_limits<std::size_t>::max();  // of a body in chunks

struct RequestHead {
  std::string method, path;  // percent-decoded, without a query
  bool of_http_1_0 = false;
  std::string authorization, content_type;
  std::size_t body = 0;           // bytes that it announces, or length_unknown
  bool expects_continue = false;  // the client sends its body when it has been told to
};

// Bytes of the head with the empty line that ends it; 0: it has not ended yet. Errors: ApiError of status 431 or 414
// for one that is longer than it may be, 400 for a line that does not end in CRLF.
std::size_t size_of_head(std::string_view received);

// REQUIRES: `head` ends as size_of_head found. Errors: ApiError of status 414 for a path of more than longest_path, 431
// for a header of more than longest_header, 415 for a compressed body, else 400.
RequestHead read_head(std::string_view head);

}  // namespace orthant
