// Files whose lines are records of their own, such as JSON lines that a user has written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace orthant {

// Calls fn(line, number) for each line that is not blank; numbers count from 1, lines have no end.
void for_each_line(std::string_view text, const std::function<void(std::string_view line, std::int64_t number)>& fn);

// Calls fn(line, "FILE:NUMBER") for each line that is not blank; returns how many there were. Errors: ConfigError for a
// file that is missing, empty or no text, and in the place of an Error that fn throws.
std::size_t for_each_line(const std::string& path,
                          const std::function<void(std::string_view line, const std::string& where)>& fn);

}  // namespace orthant
