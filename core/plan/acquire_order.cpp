#include <orthant/acquire_order.h>

#include <utility>

namespace orthant {

void AcquireOrder::acquired(int id) {
  now_.push_back(id);
  if (at_ < known_.size() && known_[at_] == id) {
    ++at_;
  } else if (!known_.empty() && known_.front() == id) {
    at_ = 1;
  } else {
    at_ = lost;
    other_way_ = true;
  }
}

std::span<const int> AcquireOrder::ahead() const {
  return at_ < known_.size() ? std::span(known_).subspan(at_) : std::span<const int>();
}

void AcquireOrder::end_step() {
  if (other_way_) {
    known_ = std::exchange(now_, {});
  }
  now_.clear();
  at_ = 0;
  other_way_ = false;
}

}  // namespace orthant
