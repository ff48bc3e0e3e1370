// The head of an HTTP/1.1 request, checked before anything reads it: RFC 9112.
//
// What two programs in a row could read as two different requests is refused, where many would guess: a body's length
// that is given twice or in two ways, lines that do not end as they should, names with blanks.
#pragma once

#include <cstddef>
#include <string_view>

namespace orthant {

constexpr std::size_t longest_head = 16 << 10;  // bytes

// Bytes of the head with the empty line that ends it; 0: it has not ended yet. Errors: ApiError of status 431 or 414
// for one that is longer than it may be, 400 for a line that does not end in CRLF.
std::size_t size_of_head(std::string_view received);

// REQUIRES: `head` ends as size_of_head found. Errors: ApiError of status 400.
void check_head(std::string_view head);

}  // namespace orthant
