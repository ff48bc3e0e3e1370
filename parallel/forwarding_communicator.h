// A communicator that stands before another one and passes everything on but its groups.
#pragma once

#include <orthant/group.h>

#include <string>

namespace orthant {

// Thread safety: that of `inner`, which outlives it.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}
  std::string name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void abort(const std::string& why) noexcept override { inner_.abort(why); }
  void beat() noexcept override { inner_.beat(); }
  void report_step(std::int64_t step) noexcept override { inner_.report_step(step); }

 protected:
  Communicator& inner() { return inner_; }

 private:
  Communicator& inner_;
};

}  // namespace orthant
