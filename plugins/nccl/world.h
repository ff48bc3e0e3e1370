// World: this rank's connections, its watchdog, and the one failure that ends them all.
//
// The watchdog is a thread. It makes connections: all of them side by side, for ranks that waited for one at a time
// could wait in a circle. It looks at the calls that are not done: one that waits longer than the timeout leads to a
// question to the other members, whose rendezvous answers even where their work is stuck, and to a failure that names
// who has not called. A failure of any rank, heard through the rendezvous, aborts all connections: streams go on with
// whatever their memory holds, and every later call throws before anyone can take that for a result.
//
// Thread safety: all calls from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "call_log.h"
#include "nccl_api.h"
#include "rendezvous.h"

namespace orthant::nccl {

class World {
 public:
  // Returns when every rank is there. Errors: as Rendezvous.
  World(std::shared_ptr<NcclApi> api, const RendezvousConfig& config);
  // Without a failure: closes the connections, together with the other ranks.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return config_.rank; }
  int size() const { return config_.world_size; }

  // Collective over the world, see Communicator::split. Null for a group of one. On return no member's host waits for
  // another's at the group's collectives, but for those that README.md names.
  std::shared_ptr<NcclConnection> split(const std::string& name, const std::vector<int>& members);

  // Gives a call to the stream. `connection` returns what it goes over; it is asked when the call has its number.
  // A call of no elements is only numbered: `give` is null. Errors: Error naming the call and the failure.
  using Connect = std::function<std::shared_ptr<NcclConnection>()>;
  using Give = std::function<void(NcclConnection&)>;
  void run(const std::shared_ptr<const Line>& line, const std::string& name, const std::string& what,
           std::int64_t bytes, Stream& s, const Connect& connection, const Give& give);

  // The connection of the messages from world rank `from` to world rank `to`, one of which is this one; made by the
  // first of them that asks, and ready for messages of both: no later one waits for its peer's host.
  std::shared_ptr<NcclConnection> messages(const std::string& key, int from, int to);

  // Returns when the calls of this line are done, or never will be; their events are gone then.
  void finish(const Line& line) noexcept;

  // Tells every rank to stop; `why` is a sentence that names the rank. The first reason wins.
  void fail(const std::string& why) noexcept;

  // This rank is busy with something other than calls; see Communicator::beat.
  void beat() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds tick{20};  // between two looks at what no notification tells

  std::string failure() const;  // empty: none
  void fail_unless_told(const std::string& why);

  // A connection that the watchdog sees through its beginnings.
  struct Making {
    std::string key;  // in made_
    Line line;        // who makes it; its key names no calls
    std::string what;
    NcclConnection::Carries carries;
    std::shared_ptr<NcclConnection> connection = nullptr;
    Clock::time_point begin = {};
    bool warm = false;
  };
  void make(Making making, const ConnectionId& id, int size, int rank);
  std::shared_ptr<NcclConnection> made(const std::string& key, const std::string& what);
  Making making_of_messages(const std::string& key, int from, int to) const;
  void await(NcclConnection& connection, const std::string& what);
  void require_different_gpus();
  void open_messages(const std::string& key, int to);
  void accept_messages(const std::string& key, int from, const ConnectionId& id);
  void throw_failure(const std::string& what) const;

  void hear(int from, const std::string& note);  // on the rendezvous' thread
  void watch();                                  // on the watchdog's
  void watch_calls();
  void watch_connections();
  void do_errands();
  void advance_connections();
  bool advance(Making& making);  // true: it is done
  void abort_connections();
  // What another rank says when it is asked.
  struct Answer {
    CallLog::Last last;     // on the line of the question
    double waits = 0;       // seconds that it has been in a call, the longest of its streams
    double since_beat = 0;  // seconds
  };
  std::map<int, Answer> ask(const Line& line);
  std::string blame(const Call& call, double limit, const std::map<int, Answer>& answers);
  std::string blame(const Making& making);
  double longest_wait();
  double seconds_since_beat() const;
  double limit_of(const Line& line) const;
  void close_connections();

  std::shared_ptr<NcclApi> api_;
  RendezvousConfig config_;
  CallLog calls_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<NcclConnection>> connections_;
  std::map<std::string, std::shared_ptr<NcclConnection>> made_;  // null: being made
  std::vector<std::function<void()>> errands_;                   // of the watchdog: connections to be made
  std::set<int> left_;                                           // ranks that have finished
  std::map<int, Answer> answers_;                                // of world ranks, to the question of now
  std::int64_t question_ = 0;
  bool aborted_ = false, closing_ = false, stopping_ = false;
  std::atomic<Clock::duration::rep> last_beat_ = 0;  // 0: never
  Clock::time_point patient_until_{};                // of the watchdog: somebody is busy, no question before then
  std::vector<Making> making_;                       // of the watchdog
  bool gpus_compared_ = false;                       // of the splitting thread
  int splits_ = 0;                                   // likewise

  std::unique_ptr<Rendezvous> rendezvous_;
  std::thread watchdog_;  // last: starts when all else is ready
};

}  // namespace orthant::nccl
