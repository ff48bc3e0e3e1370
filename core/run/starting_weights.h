// The weights that a new run begins with (train.from).
#pragma once

#include <orthant/settings.h>

#include <filesystem>
#include <string>

#include "core/session/teacher_config.h"

namespace orthant {

class CheckpointReader;

// The checkpoint that `from` names: the newest of a run's, or the checkpoint itself. Only its manifest is read here:
// the ranks check what they read. key: that named it, for messages. Errors: ConfigError for a folder that has none.
std::filesystem::path starting_checkpoint(const std::filesystem::path& from, const char* key = "[train] from");
// The same of the model that is read beside it (teacher_config.h).
inline std::filesystem::path teacher_checkpoint(const Settings& settings) {
  const ReferenceModel named = teacher_of(settings);
  return starting_checkpoint(named.folder, named.key.c_str());
}

// Refuses a checkpoint whose parameters are not those of the model. Errors: ConfigError naming some that are missing,
// that have other sizes, or that the model does not have.
void check_starting_weights(const std::filesystem::path& checkpoint, const Settings& settings);
// The same of one that is open. where: it, for messages.
void check_starting_weights(const CheckpointReader& reader, const std::filesystem::path& where,
                            const Settings& settings);

// The same of a run that goes on from it: its adapters must be there, and may count otherwise.
void check_resumed_weights(const std::filesystem::path& checkpoint, const Settings& settings);

// What a new run does not take, or begins anew: of multi-token prediction the model may have other depths. Empty:
// nothing.
std::string told_of_depths(const CheckpointReader& reader, const Settings& settings);

// Of a run: what lies there travels with its weights.
inline constexpr const char* pretrained_folder = "pretrained";

// What travels with weights that came from a published model (apps/pretrained), from the folder of their run into that
// of the new one; nothing where there is none.
void copy_origin(const std::filesystem::path& checkpoint, const std::filesystem::path& run);

}  // namespace orthant
