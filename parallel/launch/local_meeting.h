// LocalMeeting: how ranks of one machine that an external launcher started, each by a process of its own, come to share
// memory.
//
// The process of rank 0 makes the segment and hands its descriptor to the others over an abstract unix socket. The
// socket's name follows from the start's key and secret, and both sides look who the other one is: only processes of
// this user that know the secret meet. Each keeps its connection to the end. When one closes before its rank has
// finished, as the kernel does for a process that is killed, whoever sees it marks that rank as failed in the segment,
// which stops the others.
//
// Thread safety: all calls from one thread. A thread of its own watches; it blocks all signals.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "parallel/launch/rank_process.h"
#include "parallel/launch/start_secret.h"
#include "parallel/local/segment.h"

namespace orthant {

struct LocalMeetingOptions {
  SecretPlace secret;
  std::string key;  // the same for every rank of a start, another for a start beside it
  int rank = 0;
  int world_size = 1;
  double timeout_seconds = 60;
};

class LocalMeeting {
 public:
  // Rank 0: returns when the others can come. The others: when they have the segment. Errors: Error naming what did not
  // come within the timeout, or why this rank is refused.
  explicit LocalMeeting(const LocalMeetingOptions& options);
  ~LocalMeeting();
  LocalMeeting(const LocalMeeting&) = delete;
  LocalMeeting& operator=(const LocalMeeting&) = delete;

  const std::shared_ptr<LocalSegment>& segment() const { return segment_; }

 private:
  std::shared_ptr<LocalSegment> segment_;
  Descriptor wake_;     // closed to end the thread
  std::thread thread_;  // watches until then
};

}  // namespace orthant
