// A group whose ranks are on several stages: while layers run they are at different places of the step, so what waits
// for all of them on the main stream would wait for ever.
#pragma once

#include <memory>

#include <orthant/mesh.h>

namespace orthant {

// `group`, but collectives on the main stream throw Error while layers run; sends and receives pass. `running` outlives
// it.
std::unique_ptr<Group> make_staged_group(std::unique_ptr<Group> group, const RunningLayers& running);

}  // namespace orthant
