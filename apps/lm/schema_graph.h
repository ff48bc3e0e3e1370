// What a schema's graph of nodes says once it is whole: which alternatives are one, and how deep values are.
#pragma once

#include <vector>

#include "apps/lm/json_schema.h"

namespace orthant {

// Of alternatives (Node::of) that allow the same values the first stays: each is tried at every byte of an answer.
// REQUIRES: alternatives are no choices themselves.
void merge_equal_alternatives(std::vector<JsonSchema::Node>& nodes);

// Node::levels of all; more levels than `limit` count as `limit`.
void measure_levels(std::vector<JsonSchema::Node>& nodes, int limit);

}  // namespace orthant
