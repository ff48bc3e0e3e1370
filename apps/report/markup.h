// Text inside markup: names may be anybody's.
#pragma once

#include <string>
#include <string_view>

namespace orthant::report {

// For the text of an element or a quoted attribute of XML and HTML. What XML cannot hold (control characters, bytes
// that are not UTF-8) becomes U+FFFD.
std::string escaped(std::string_view text);

// One field of a CSV file (RFC 4180), quoted where it must be. A text that a spreadsheet would run as a formula gets an
// apostrophe before it.
std::string csv_field(std::string_view text);

// For a data: link, as UTF-8: every byte but letters, digits and -._~ as %XX. Bytes that are not UTF-8 become U+FFFD.
std::string percent_encoded(std::string_view text);

// One word of a command for a POSIX shell, quoted where it must be.
std::string shell_word(std::string_view text);

// Characters, not bytes; those of an invalid byte count too.
std::size_t length_of(std::string_view text);

// At most `most` characters: the middle gives way to an ellipsis.
std::string shortened(std::string_view text, std::size_t most);

}  // namespace orthant::report
