#include "io_engine.h"

#if defined(ORTHANT_HAVE_LIBURING)
#include <liburing.h>
#include <orthant/error.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>
#endif

namespace orthant::offload {

#if defined(ORTHANT_HAVE_LIBURING)
namespace {

// A ring that has worked once, and the event that wakes its thread. Errors: std::system_error where the kernel refuses.
class Ring {
 public:
  explicit Ring(unsigned entries) {
    check(io_uring_queue_init(entries, &ring_, 0), "io_uring_setup");
    try {
      event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      check(event_ < 0 ? -errno : 0, "eventfd");
      check_operations();
    } catch (...) {
      close();
      throw;
    }
  }
  ~Ring() { close(); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  io_uring* get() { return &ring_; }
  int event() const { return event_; }

 private:
  static void check(int result, const char* call) {
    if (result < 0) {
      throw std::system_error(-result, std::generic_category(), call);
    }
  }
  // A filter of system calls may permit the setup and refuse the rest: one operation is sent through.
  void check_operations() {
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool known = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_POLL_ADD) != 0;
    io_uring_free_probe(probe);
    check(known ? 0 : -ENOSYS, "reads and writes of io_uring");
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    check(io_uring_submit(&ring_), "io_uring_enter");
    io_uring_cqe* ended = nullptr;
    check(io_uring_wait_cqe(&ring_, &ended), "io_uring_enter");
    io_uring_cqe_seen(&ring_, ended);
  }
  void close() {
    io_uring_queue_exit(&ring_);
    if (event_ >= 0) {
      ::close(event_);
    }
  }

  io_uring ring_{};
  int event_ = -1;
};

// The ring belongs to one thread, which sleeps in the kernel until an operation ends or the event says that there are
// new ones. So the caller of start pays for no submission, and the disk is kept busy while the caller computes.
class UringEngine final : public IoEngine {
 public:
  explicit UringEngine(int depth) : ring_(static_cast<unsigned>(depth) + 1) {
    worker_ = std::thread([this] { run(); });
  }
  ~UringEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    worker_.join();
  }
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;

  void start(IoOperation& operation) override {
    bool asleep = false;
    {
      const std::lock_guard lock(mutex_);
      fresh_.push_back(&operation);
      std::swap(asleep, asleep_);
    }
    if (asleep) {
      wake();
    }
  }
  const char* name() const override { return "io_uring"; }

 private:
  void wake() const { ::eventfd_write(ring_.event(), 1); }

  void run() {
    bool watching = false;  // whether the kernel looks at the event
    std::vector<IoOperation*> fresh;
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) {
          return;
        }
        fresh.swap(fresh_);
        asleep_ = true;
      }
      if (!watching) {
        io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
        io_uring_prep_poll_add(entry, ring_.event(), POLLIN);
        io_uring_sqe_set_data(entry, nullptr);
        watching = true;
      }
      for (IoOperation* const operation : fresh) {
        prepare(*operation);
      }
      fresh.clear();
      const int submitted = io_uring_submit_and_wait(ring_.get(), 1);
      if (submitted == -EAGAIN || submitted == -EBUSY) {  // the kernel is short of memory; what it refused is kept
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } else if (submitted < 0 && submitted != -EINTR) {
        // Not of a ring that has worked. What is in flight could not be waited for any more: the process ends here.
        fail("io_uring cannot submit: {}", std::generic_category().message(-submitted));
      }
      {
        const std::lock_guard lock(mutex_);
        asleep_ = false;
      }
      io_uring_cqe* ended = nullptr;
      while (io_uring_peek_cqe(ring_.get(), &ended) == 0) {
        auto* const operation = static_cast<IoOperation*>(io_uring_cqe_get_data(ended));
        const std::int64_t result = ended->res;
        io_uring_cqe_seen(ring_.get(), ended);
        if (operation != nullptr) {
          operation->done(result);
        } else {
          eventfd_t count = 0;
          ::eventfd_read(ring_.event(), &count);
          watching = false;
        }
      }
    }
  }

  // There is an entry left: no more than the depth are in flight, and the event's.
  void prepare(const IoOperation& operation) {
    io_uring_sqe* const entry = io_uring_get_sqe(ring_.get());
    const auto bytes = static_cast<unsigned>(operation.bytes);
    const auto offset = static_cast<std::uint64_t>(operation.offset);
    if (operation.kind == IoOperation::Kind::read) {
      io_uring_prep_read(entry, operation.file, operation.memory, bytes, offset);
    } else {
      io_uring_prep_write(entry, operation.file, operation.memory, bytes, offset);
    }
    io_uring_sqe_set_data(entry, const_cast<IoOperation*>(&operation));
  }

  Ring ring_;
  std::mutex mutex_;
  std::vector<IoOperation*> fresh_;  // started, not yet seen by the thread
  bool asleep_ = false;              // the thread is, or is about to be, and nobody has woken it
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_engine(int depth, std::string& why) {
  try {
    return std::make_unique<UringEngine>(depth);
  } catch (const std::system_error& refused) {
    why = refused.what();
    return nullptr;
  }
}

#else

std::unique_ptr<IoEngine> make_uring_engine(int /*depth*/, std::string& why) {
  why = "this build has no liburing (install liburing-dev and build again)";
  return nullptr;
}

#endif

}  // namespace orthant::offload
