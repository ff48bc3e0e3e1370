// Whether all ranks see one run folder: where they do not, each host would keep a part of every checkpoint.
#pragma once

#include <orthant/group.h>
#include <orthant/ops.h>

#include <filesystem>

namespace orthant {

// Rank 0 makes a file in the folder, or in its `checkpoints` where there are any, for which the others look. Collective
// over the world. Nothing of it stays; the folder is made. Passed over where rank 0 cannot write there, which will be
// told when the run does. Errors: ConfigError, the same on all ranks, with the host and the path of those that do not
// see it.
void require_shared_folder(const std::filesystem::path& run_folder, Group& world, Stream& stream);

}  // namespace orthant
