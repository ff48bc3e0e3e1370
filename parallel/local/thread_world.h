// run_threads: a world whose ranks are threads of this process, for tests, `orthant verify` and commands of one rank.
#pragma once

#include <functional>

#include <orthant/group.h>

#include "parallel/local/segment.h"

namespace orthant {

struct ThreadWorldOptions {
  double timeout_seconds = 60;
  SegmentOptions segment;
};

// Runs body(communicator) on `world` threads, one a rank, over a segment of their own, and joins them all. A rank
// that throws aborts the world, so that the others stop too.
// Errors: Error (with the exit code of an Error) of the rank that failed first, its rank in front of the message;
// not of those that only stopped because of it.
void run_threads(int world, const std::function<void(Communicator&)>& body, const ThreadWorldOptions& options = {});

}  // namespace orthant
