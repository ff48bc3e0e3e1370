// What --resume asks for: which checkpoint, verified by all ranks together.
#pragma once

#include <orthant/group.h>
#include <orthant/ops.h>

#include <filesystem>
#include <string>

#include "core/config/config.h"

namespace orthant {

// What --resume says: the newest checkpoint of the run ("auto"); `path`; or `path` where the run has none
// ("auto:PATH"). Neither: a fresh start. A path may begin with "auto".
struct ResumeFrom {
  bool newest = false;
  std::string path;
};
ResumeFrom resume_from(const std::string& resume);

// Refuses, before anything starts, a checkpoint that --resume names and that is not there, is none, or is of another
// model, optimizer or tokenizer; and such a newest one of the run under `root`, as far as its manifest tells. (Whether
// that is undamaged is found out when the run starts.) Warns of settings that are others than the refused one's.
// Errors: ConfigError.
void check_resume(const std::string& resume, const std::filesystem::path& root, const Config& config);

// Whether a run with this --resume starts fresh. Where `root` cannot be listed it does not: find_checkpoint will say
// why.
bool starts_fresh(const std::string& resume, const std::filesystem::path& root);

// The folder of the checkpoint to go on from; empty: a fresh start. The newest is the newest under `root` that is
// undamaged.
//
// "auto" starts fresh only where there is no checkpoint at all. A damaged one, or one under another name than its
// step's, is passed over for an older one, with a line on the standard error. One that cannot be read now is refused,
// and so are checkpoints of which none can be used.
//
// Collective over `world`: each rank reads its share of the files. What rank 0 asks for counts.
// Errors, on rank 0: Error, ConfigError (what will not change by itself); each says how to go on all the same.
std::filesystem::path find_checkpoint(const std::string& resume, const std::filesystem::path& root, Group& world,
                                      Stream& stream);

}  // namespace orthant
