// The head of an HTTP/1.1 request, checked before anything reads it: RFC 9112.
//
// What two programs in a row could read as two different requests is refused, where many would guess: a body's length
// that is given twice or in two ways, lines that do not end as they should, names with blanks.
#pragma once

#include <cstddef>
#include <limits>
#include <string_view>

namespace orthant {

constexpr std::size_t longest_head = 16 << 10;  // bytes
// Bytes of a header's line. The library reads no longer one: 8192 with the line's end.
constexpr std::size_t longest_header = 8190;

// Bytes of the head with the empty line that ends it; 0: it has not ended yet. Errors: ApiError of status 431 or 414
// for one that is longer than it may be, 400 for a line that does not end in CRLF.
std::size_t size_of_head(std::string_view received);

constexpr std::size_t length_unknown = std::numeric_limits<std::size_t>::max();  // of a body in chunks

// Bytes of the body that it announces. REQUIRES: `head` ends as size_of_head found. Errors: ApiError of status 431 for
// a header of more than longest_header, else 400.
std::size_t check_head(std::string_view head);

}  // namespace orthant
