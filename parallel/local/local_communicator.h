// The `local` communicator: all ranks on one machine, as threads or as processes, over one LocalSegment.
#pragma once

#include <memory>

#include <orthant/group.h>

#include "parallel/local/segment.h"

namespace orthant {

// The communicator of world rank `rank`; marks it running. One per rank and segment. A collective in which a member
// does not arrive within `timeout_seconds` fails on all.
//
// The rank's end is not the communicator's to tell: set LocalSegment::set_state(rank, finished) when the work is
// done, abort() or mark_failed() when it failed. A destroyed communicator's groups remain usable.
std::unique_ptr<Communicator> make_local_communicator(std::shared_ptr<LocalSegment> segment, int rank,
                                                      double timeout_seconds);

}  // namespace orthant
