// The types of rope_scaling: linear, llama3, yarn, longrope, dynamic. Part of rope_link.h.
#pragma once

#include <set>
#include <string>

#include "apps/pretrained/rope_link.h"

namespace orthant {

// scaling: the object that says them, of a type that is not "default".
void read_rope_scaling(ConfigLink& link, const ConfigLink::Theirs& scaling, const std::string& type,
                       const RopeKeys& keys);
// Writes rope_scaling, and what belongs to it outside. Nothing where nothing is scaled.
void write_rope_scaling(ConfigLink& link, const RopeKeys& keys);

// Refuses members of rope_scaling that are neither `known` nor what stands there whatever its type.
void refuse_other_rope_keys(ConfigLink& link, const std::string& type, const ConfigLink::Theirs& scaling,
                            std::set<std::string> known);

}  // namespace orthant
