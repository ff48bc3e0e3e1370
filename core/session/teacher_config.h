// The model that is read beside the one that trains, as a configuration: its own model, in the student's layout, on the
// student's batches. Which one is the objective's to say: the teacher of [distil] (docs/guides/distil.md), or the
// reference of [preference] (docs/guides/preference.md).
#pragma once

#include <orthant/objective.h>

#include "core/config/config.h"

namespace orthant {

inline ReferenceModel teacher_of(const Settings& student) {
  return objective_of(student).reference(student);
}

inline bool has_teacher(const Config& config) {
  return !teacher_of(config.settings).folder.empty();
}

// [model], [moe] and [lora] of the teacher's run; everything else, the plugins among it, is the student's. Nothing of
// it trains. REQUIRES: has_teacher. Errors: ConfigError where there is no such run, where it cannot be read, or where
// it has other ids than the student.
Config teacher_config(const Config& student);

}  // namespace orthant
