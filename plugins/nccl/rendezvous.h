// Rendezvous: how the ranks of a run find each other, and tell each other what the GPUs' network cannot: who is there,
// who has died, why to stop. Rank 0 listens (hub.h), every rank keeps one connection to it until the end.
//
// It knows nothing of NCCL. Both sides of a connection prove first that they know the start's secret
// (<orthant/handshake.h>); a stranger is told nothing, and his bytes cause no crash and no large allocation.
// Thread safety: all_gather from one thread at a time; everything else from any thread, handlers included.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <orthant/handshake.h>

#include "frame.h"
#include "hub.h"
#include "socket.h"

namespace orthant::nccl {

struct RendezvousConfig {
  std::string address;  // see address.h
  std::string job;      // the same on all ranks of a run, different for another run
  SecretPlace secret;   // of the start
  int rank = 0, world_size = 1;
  double timeout_seconds = 60;
};

class Rendezvous {
 public:
  // Called by the connection's own thread.
  struct Handlers {
    std::function<void()> failed;  // failure() has just got its value
    std::function<void(int from, const std::string& text)> note;
    std::function<void(int rank)> left;
  };

  // Returns when every rank is there. Errors: Error naming who did not come, or why this rank is refused.
  explicit Rendezvous(const RendezvousConfig& config);
  ~Rendezvous();  // as stop, where that has not been called
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // From here on handlers are called. Call it once.
  void start(Handlers handlers);

  // Collective over the world. `label` says what for, in words ("split of group 'a'"), and must agree; payload: at most
  // 60 KB; returns everyone's. REQUIRES: start. Errors: Error, as a failure: another label, a rank that does not come.
  std::vector<std::string> all_gather(const std::string& label, const std::string& payload);

  // To one rank, or to all others (-1). Delivered in order, not answered.
  void post(int to, const std::string& text) noexcept;

  // Tells the others that this rank's work is done: that its connection ends from now on is no failure. Call it once.
  void leave() noexcept;

  // leave(), where that has not been called and there is no failure. On rank 0, waits until all have left. Handlers may
  // be called, and call this, until it returns. Call it once.
  void stop();

  // Tells everyone to stop. `why` is a sentence that names the rank; the first one wins.
  void fail(const std::string& why) noexcept;
  std::optional<std::string> failure() const;

 private:
  void host();
  void connect();
  void prove(const std::string& secret, std::chrono::steady_clock::time_point end);
  void await_welcome();
  void run();
  void handle(Frame& frame);
  void set_failure(const std::string& why);
  void send_frame(const Frame& frame) noexcept;
  std::optional<Frame> receive();  // none: the connection has ended
  void send_bytes(std::string_view bytes) noexcept;

  RendezvousConfig config_;
  Socket socket_;
  std::unique_ptr<Hub> hub_;  // rank 0
  static constexpr std::size_t max_frame = 256u << 20;
  FrameReader reader_{max_frame};
  Handlers handlers_;

  std::mutex write_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> failure_;
  std::optional<std::string> gathered_;
  bool left_ = false;
  bool closing_ = false;
  bool stopped_ = false;  // of the thread that calls stop
  bool ended_ = false;    // the reading thread
  std::thread thread_;
};

}  // namespace orthant::nccl
