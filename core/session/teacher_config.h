// The teacher of [distil] (docs/distil.md) as a configuration: its own model, in the student's layout, on the student's
// batches.
#pragma once

#include "core/config/config.h"

namespace orthant {

inline bool has_teacher(const Config& config) {
  return !config.settings.distil.teacher.empty();
}

// [model], [moe] and [lora] of the teacher's run; everything else, the plugins among it, is the student's. Nothing of
// it trains. REQUIRES: has_teacher. Errors: ConfigError where there is no such run, where it cannot be read, or where
// it has other ids than the student.
Config teacher_config(const Config& student);

}  // namespace orthant
