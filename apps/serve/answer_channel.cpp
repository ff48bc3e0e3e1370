#include "apps/serve/answer_channel.h"

#include <utility>

namespace orthant {

bool AnswerChannel::put(std::size_t choice, const TokenEvent& event) {
  const std::lock_guard lock(mutex_);
  if (left_ || error_.has_value()) {
    return false;
  }
  open_ -= event.finish.has_value() ? 1 : 0;
  parts_.push_back({choice, event});
  come_.notify_one();
  return true;
}

void AnswerChannel::fail(ApiError error) {
  const std::lock_guard lock(mutex_);
  if (!error_.has_value() && open_ > 0) {
    error_ = std::move(error);
  }
  come_.notify_one();
}

std::vector<AnswerChannel::Part> AnswerChannel::take(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  come_.wait_for(lock, patience, [&] { return !parts_.empty() || error_.has_value(); });
  if (parts_.empty() && error_.has_value()) {
    throw ApiError(*error_);
  }
  return std::exchange(parts_, {});
}

void AnswerChannel::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  parts_.clear();
}

bool AnswerChannel::over() const {
  const std::lock_guard lock(mutex_);
  return left_ || error_.has_value() || open_ == 0;
}

std::size_t AnswerChannel::open() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

}  // namespace orthant
