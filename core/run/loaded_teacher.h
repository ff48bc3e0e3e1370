// The teacher of a configuration, with its weights.
#pragma once

#include <memory>

#include "core/train/teacher.h"

namespace orthant {

// Null where the configuration has none. Collective over the world. Errors: those of Teacher and of load_weights.
std::unique_ptr<Teacher> loaded_teacher(const Config& student, Communicator& communicator, Device& device,
                                        Stream& stream);

}  // namespace orthant
