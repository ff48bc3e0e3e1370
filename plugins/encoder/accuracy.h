// Objectives of labels that stand beside tokens: cross entropy, and how many labels are the model's first guess.
#pragma once

#include <memory>
#include <string>

#include <orthant/objective.h>

namespace orthant::encoder {

// figure: its name in metrics.jsonl, "masked_accuracy". source: whose data it is implied by.
std::shared_ptr<const Objective> make_accuracy(const std::string& figure, const std::string& source);

}  // namespace orthant::encoder
