// The settings that a run's results depend on, kept in its checkpoints: whoever resumes with others is told so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

// As the text of a JSON object: "table.key" to the value as TOML. Layout, speed and what is written where are left out.
std::string remembered_settings(const Config& config);

// One line for each setting that `remembered` (text of an earlier remembered_settings) has with another value, such as
// "model.heads = 2 (was 4)". Settings that only one of them knows are passed over, and so is text of another kind.
std::vector<std::string> changed_settings(const Config& config, const std::string& remembered);

// model.kind of an earlier remembered_settings; what was written before there were kinds is a decoder.
std::string remembered_kind(const std::string& remembered);

// run.steps of an earlier remembered_settings, which is no line of those: a run may be longer, and only some learning
// rates depend on it. Nothing: it does not say.
std::optional<std::int64_t> remembered_steps(const std::string& remembered);

}  // namespace orthant
