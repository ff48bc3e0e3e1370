// AnswerChannel: what becomes of one client's request, from the model's thread to the one that serves the client.
//
// Thread safety: put and fail are the model's thread's, take the client's; the rest is anybody's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "apps/lm/generator.h"
#include "apps/serve/api_error.h"

namespace orthant {

class AnswerChannel {
 public:
  struct Part {
    std::size_t choice;  // of the request
    TokenEvent event;
  };

  explicit AnswerChannel(std::size_t choices) : open_(choices) {}

  // Never waits: a slow client holds up nobody. False: it has gone, or its request has failed.
  bool put(std::size_t choice, const TokenEvent& event);
  void fail(ApiError error);
  // What has come since the last call; waits for some of it up to `patience`. Errors: ApiError, where fail was called.
  std::vector<Part> take(std::chrono::milliseconds patience);
  // The client wants nothing more.
  void leave();
  // Nothing more will be put, or wanted.
  bool over() const;
  // Choices that have not ended.
  std::size_t open() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable come_;
  std::vector<Part> parts_;
  std::size_t open_;
  bool left_ = false;
  std::optional<ApiError> error_;
};

}  // namespace orthant
