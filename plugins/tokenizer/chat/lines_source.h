// The sources "chat" and "pairs": JSON lines that a chat template makes tokens of.
#pragma once

#include <orthant/settings.h>
#include <orthant/source.h>

#include <memory>
#include <string>
#include <vector>

namespace orthant {

std::shared_ptr<const Source> lines_source(const std::string& name);

// Of settings.data.path and validation_path: notes_of_row_keys.
std::vector<std::string> notes_of_lines(const Settings& settings);

}  // namespace orthant
