// CallLog: which calls this rank has made and which are not done. For the watchdog, and for the question that ranks ask
// each other when one waits too long: have you made this call?
//
// Thread safety: all calls from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <orthant/device.h>
#include <orthant/ops.h>

namespace orthant::nccl {

// Calls that are numbered together, the same on all who make them: the collectives of a group, or the messages from one
// member to another.
struct Line {
  std::string key;           // of the world: "7" (a group's number), "7 0>1"
  std::string group;         // its name
  std::vector<int> members;  // world ranks that call
};

struct Call {
  std::string name;  // "all_reduce", "send"
  std::string what;  // what all sides must agree on
  std::int64_t bytes = 0;
  std::int64_t sequence = 0;  // from 1; given by the log
  std::shared_ptr<const Line> line;

  std::string describe() const;  // "all_reduce #2 (16 bytes) of group 'data'"
};

class CallLog {
 public:
  using Clock = std::chrono::steady_clock;

  // Numbers a call that is about to be given to `s`, behind what the stream has now.
  std::shared_ptr<const Call> begin(const std::shared_ptr<const Line>& line, std::string name, std::string what,
                                    std::int64_t bytes, Stream& s);
  // The call has been given to the stream.
  void given(const std::shared_ptr<const Call>& call, Stream& s);
  // The call has failed, or there was nothing to do.
  void forget(const std::shared_ptr<const Call>& call);
  void forget_all_of(const Line& line);

  // The call that each stream is in, and for how long. Drops what is done.
  struct Waiting {
    std::shared_ptr<const Call> call;
    double seconds;
  };
  std::vector<Waiting> waiting();
  bool done(const Line& line);  // every call of it

  // What this rank knows of a line.
  struct Last {
    std::int64_t sequence = 0;  // of the last call; 0: none
    std::string what;           // that call
  };
  Last last(const std::string& key) const;

 private:
  struct Pending {
    std::shared_ptr<const Call> call;
    std::shared_ptr<Event> before, after;  // after: null until given
    std::optional<Clock::time_point> reached;
  };
  void drop_done(std::deque<Pending>& calls);

  mutable std::mutex mutex_;
  std::map<std::string, Last> last_;
  std::map<const Stream*, std::deque<Pending>> pending_;  // in the order of each stream
};

}  // namespace orthant::nccl
