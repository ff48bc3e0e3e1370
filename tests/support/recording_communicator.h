// The recording communicator of the conformance suite, by the names that tests use.
#pragma once

#include "core/conformance/recording_communicator.h"

namespace orthant::test {

using orthant::CallRecord;
using orthant::RecordingCommunicator;

}  // namespace orthant::test
