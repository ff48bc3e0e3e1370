// The rows of a file of JSON: a value in each line, or the elements of one array.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/data/corpus.h"

namespace orthant {

// Where each row stands, in bytes of the file. Blank lines are left out, and so is a byte order mark. A file that
// begins with "[" is one array, whose elements may take any number of lines; what stands within an element is not
// looked at. path: for messages. Errors: ConfigError for an array that has no end, and for what stands behind it or
// between its elements.
std::vector<Document> json_rows(std::span<const std::byte> bytes, const std::string& path);

}  // namespace orthant
