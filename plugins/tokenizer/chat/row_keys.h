// The keys of rows of conversations and pairs: which are read, which are refused as they would change what is learnt,
// and which are passed over and counted.
#pragma once

#include <string>
#include <vector>

#include "core/base/json.h"

namespace orthant {

enum class RowKind { conversation, pair };

// Refuses a key that changes what should be learnt, or what stands before it, and that nothing here reads: calls of
// tools, thoughts, images, masks. One whose value says nothing (null, false, empty) passes. where: "message 2: ".
// Errors: ConfigError with the key, and what to do.
void check_message_keys(const Json& message, const std::string& where);
// The same of what stands beside the messages.
void check_row_keys(const Json& row);

// A sentence for each file that has keys which are passed over, with how many rows have each; files that cannot be read
// are left to others.
std::vector<std::string> notes_of_row_keys(const std::vector<std::string>& paths, RowKind kind);

}  // namespace orthant
