// points.csv: a line for each point of a card, for spreadsheets.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace orthant {

// REQUIRES: the document of a StudyCard. Numbers that were not measured are empty.
std::string points_csv(const nlohmann::ordered_json& card);

}  // namespace orthant
