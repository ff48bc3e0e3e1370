// A communicator whose groups trace: each call is a span of its stream, from when the stream gets there until the call
// is over. A span is numbered so that those of all ranks can be laid beside each other: who came last is known then
// (core/trace/join.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <orthant/group.h>

#include "core/trace/trace.h"
#include "parallel/forwarding_communicator.h"

namespace orthant {

class TracingCommunicator final : public ForwardingCommunicator {
 public:
  // Both outlive it and its groups.
  TracingCommunicator(Communicator& inner, Trace& trace) : ForwardingCommunicator(inner), trace_(trace) {}

  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override;

 private:
  Trace& trace_;
  std::int64_t splits_ = 0;
};

}  // namespace orthant
