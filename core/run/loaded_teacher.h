// The teacher of a configuration, with its weights.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/train/teacher.h"

namespace orthant {

// Null where the configuration has none. Collective over the world. Errors: those of Teacher and of load_weights.
std::unique_ptr<Teacher> loaded_teacher(const Config& student, Communicator& communicator, Device& device,
                                        Stream& stream);

// In the state of a checkpoint, what load_teacher has returned.
inline constexpr const char* teacher_state = "teacher";

// Loads the weights into the teacher of a run, tells of it on rank 0, and returns which they are: "step 20 of run ID".
// resumed: the state of the checkpoint that the run goes on from, which keeps the teacher that it began with; empty for
// a new run. Collective over the world. Errors: ConfigError for another teacher; those of load_weights.
std::string load_teacher(Teacher& teacher, const Settings& student, const std::map<std::string, std::string>& resumed,
                         Group& world, Stream& stream);

// For a run without one. Errors: ConfigError where the checkpoint that it goes on from had a teacher.
void require_no_teacher(const std::map<std::string, std::string>& resumed);

}  // namespace orthant
