// A published model that gets further tokens, as those of a chat.
#pragma once

#include <cstdint>
#include <string>

#include "apps/pretrained/config_link.h"

namespace orthant {

// Puts the vocabulary that was asked for (0: none was) in place of the published one, which it returns. Errors:
// ConfigError for a smaller one.
std::int64_t grow_vocabulary(OurKeys& keys, std::int64_t asked, const std::string& where);

// Whether a parameter of ours has a row, or a number, for each token.
bool has_row_for_each_token(const std::string& name);

// table [all, columns], of which the first `rows` are there. The others become the mean of those: each token then
// begins as likely as an average one, and not as noise.
void fill_new_rows(float* table, std::int64_t rows, std::int64_t all, std::int64_t columns);

}  // namespace orthant
