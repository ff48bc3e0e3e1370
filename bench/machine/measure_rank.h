// What one rank measures, beside the others: products, memory, attention by rank 0 alone; then how ranks share cores;
// then the communicator's calls. Everything goes by the interfaces of a device and a communicator, whichever they are.
#pragma once

#include <orthant/device.h>
#include <orthant/group.h>

#include "bench/machine/measured.h"

namespace orthant::machine {

// Collective: all ranks call it. Rank 0's result counts; step_seconds and what the machine is called are not in it.
// quick: fewer shapes, sizes and repetitions. Errors: Error of the device or the communicator.
Measured measure_rank(Communicator& communicator, Device& device, bool quick);

}  // namespace orthant::machine
