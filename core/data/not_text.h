// Files that somebody gives for a text, and that are compressed, a container, or not in UTF-8.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/base/mapped_file.h"

namespace orthant {

// Refuses a file by its first bytes: archives and compressed files, Parquet and other tables, and UTF-16 and UTF-32,
// with or without a byte order mark. Errors: ConfigError naming the file, what it is, and the command that makes a text
// of it.
void require_text(const MappedFile& file);

// The same where it is no text: what it is, and what to do, as "compressed (gzip): zcat ... > ...". Empty: it may be a
// text.
std::string what_else_than_text(std::span<const std::byte> bytes, const std::string& path);

// A byte order mark of UTF-8, or nothing: bytes that stand before a text and are none of it.
std::size_t byte_order_mark(std::string_view text);

}  // namespace orthant
