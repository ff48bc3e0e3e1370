// A communicator whose groups trace: each call is a span of its stream, from when the stream gets there until the call
// is over. A span is numbered so that those of all ranks can be laid beside each other: who came last is known then
// (core/trace/join.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <orthant/group.h>

#include "core/trace/trace.h"

namespace orthant {

class TracingCommunicator final : public Communicator {
 public:
  // Both outlive it and its groups.
  TracingCommunicator(Communicator& inner, Trace& trace) : inner_(inner), trace_(trace) {}

  std::string name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override;
  void abort(const std::string& why) noexcept override { inner_.abort(why); }
  void beat() noexcept override { inner_.beat(); }
  void report_step(std::int64_t step) noexcept override { inner_.report_step(step); }

 private:
  Communicator& inner_;
  Trace& trace_;
  std::int64_t splits_ = 0;
};

}  // namespace orthant
