// Hub: rank 0's side of the rendezvous. One thread that all ranks, rank 0 too, are connected to.
//
// It admits ranks: connections that prove to know the secret; of those, other jobs and doubles are refused with the
// reason. All others are closed without a word. It passes notes, gathers what every rank contributes,
// and tells everyone the first failure: one that a rank reports, a connection that ends before its rank has said that
// it leaves, a rank that does not come or does not contribute in time.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <orthant/handshake.h>

#include "frame.h"
#include "socket.h"

namespace orthant::nccl {

struct HubOptions {
  std::string address;  // for messages
  std::string job;
  std::string secret;
  int world_size = 1;
  double timeout_seconds = 60;
  double stranger_seconds = 5;  // a connection that does not prove itself within them is closed
};

// The text of a hello.
std::string hello_text(int world_size, const std::string& job);

class Hub {
 public:
  // own: the hub's end of a connection to rank 0 of this process.
  Hub(Socket listener, Socket own, HubOptions options);
  // Waits until every rank has left or the connection of each has ended; a second at most after a failure.
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    Socket socket;
    FrameReader reader;
    std::string out;  // not yet sent
    int rank = -1;    // -1: has not said hello
    Clock::time_point since;
    bool closing = false;                // after `out` is sent
    std::unique_ptr<Handshake> proving;  // null: it has proven that it knows the secret
  };
  struct Contribution {
    bool given = false;
    std::string payload;
  };

  void run();
  void accept_one();
  void drop_oldest_stranger();
  void read_from(Peer& peer);
  void write_to(Peer& peer);
  void lose(Peer& peer);
  void handle(Peer& peer, Frame frame);
  void admit(Peer& peer, const Frame& hello);
  void refuse(Peer& peer, const std::string& why);
  void gather(int rank, const std::string& text);
  void leave(int rank);
  void check_times();
  void fail(int rank, const std::string& why);
  void tell(Peer& peer, const Frame& frame) { peer.out += encode(frame); }
  void tell_all(const Frame& frame, int except = -1);
  bool may_end() const;
  std::string names_of_missing() const;  // "rank 2" or "ranks 2, 3": who has not contributed (or not come)

  Socket listener_;
  HubOptions options_;
  std::vector<Peer> peers_;
  std::vector<bool> come_, left_;
  int joined_ = 0, refused_ = 0;  // ranks; strangers
  Clock::time_point start_ = Clock::now();

  std::string label_;  // of the gather in progress; empty: none
  std::vector<Contribution> contributions_;
  Clock::time_point gather_start_;

  bool failed_ = false;
  Frame failure_;
  Clock::time_point failed_at_;
  Socket wake_, woken_;  // the destructor closes `wake_`
  bool stopping_ = false;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace orthant::nccl
