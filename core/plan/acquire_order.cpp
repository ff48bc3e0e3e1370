#include <orthant/acquire_order.h>

#include <utility>

namespace orthant {

void AcquireOrder::Passes::acquired(int id) {
  now.push_back(id);
  if (at < known.size() && known[at] == id) {
    ++at;
  } else if (!known.empty() && known.front() == id) {
    at = 1;
  } else {
    at = lost;
    other_way = true;
  }
}

void AcquireOrder::Passes::end() {
  if (other_way) {
    known = std::exchange(now, {});
  }
  now.clear();
  at = 0;
  other_way = false;
}

void AcquireOrder::acquired(int id, bool training) {
  if (training && validating_) {
    validation_.end();
  }
  validating_ = !training;
  (training ? training_ : validation_).acquired(id);
}

std::span<const int> AcquireOrder::ahead() const {
  const Passes& passes = validating_ ? validation_ : training_;
  return passes.at < passes.known.size() ? std::span(passes.known).subspan(passes.at) : std::span<const int>();
}

void AcquireOrder::end_step() {
  training_.end();
}

}  // namespace orthant
