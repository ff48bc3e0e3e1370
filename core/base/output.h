// Words for the standard streams, from programs that must go on when these are closed, full, blocked or without a
// reader.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace orthant {

// Writes to a descriptor without ever waiting for its reader: what does not go now is kept, up to a bound.
//
// A terminal or pipe is opened once more for this: O_NONBLOCK on the description that a shell or another program shares
// would change it for them as well. Thread safety: none. REQUIRES: SIGPIPE ignored.
class OutputSink {
 public:
  static constexpr std::size_t capacity = 256 * 1024;  // bytes that wait

  explicit OutputSink(int descriptor);  // stays the caller's
  ~OutputSink();
  OutputSink(const OutputSink&) = delete;
  OutputSink& operator=(const OutputSink&) = delete;

  // Never waits, never fails. Text for which there is no room is dropped whole, and so is what comes after it until
  // take_dropped() has told of the gap. Text that `matters` is not dropped there, and may use as much room again.
  void write(std::string_view text, bool matters = false);
  // Writes what can be written now.
  void flush();
  // Until all is written, or none of it could be for `seconds`.
  void drain(double seconds);

  std::size_t waiting() const { return waiting_.size(); }  // bytes
  // To poll for POLLOUT; -1 where nothing waits, or where polling does not tell (a full disk).
  int poll_descriptor() const { return waiting_.empty() || full_ ? -1 : descriptor_; }
  // How many texts were dropped since the last call, once there is room to say so; otherwise 0.
  std::int64_t take_dropped();

 private:
  long write_some(std::string_view text) const;

  enum class Kind { plain, reopened, socket, polled };
  Kind kind_ = Kind::plain;
  int descriptor_;
  bool gone_ = false;  // nobody will ever read it
  bool full_ = false;  // the disk, at the last try
  std::string waiting_;
  std::int64_t dropped_ = 0;
};

// At the start of a program: standard streams that are closed become ones that fail, so that no file of ours is opened
// in their place and gets their words; SIGPIPE and SIGXFSZ become errors of the write that causes them.
void prepare_standard_streams();

// Puts the signals above back, for a program that is to take this one's place.
void restore_signals_for_exec();

// A line on the standard error. Never throws for a stream that fails, and gives up on one that nobody reads after some
// seconds.
void say_line(std::string_view line);

template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  say_line(fmt::format(format, std::forward<Args>(args)...));
}

// Text on the standard output, through stdio. Never throws for a stream that fails: finish_output() tells.
void write_output(std::string_view text);

template <class... Args>
void put(fmt::format_string<Args...> format, Args&&... args) {
  write_output(fmt::format(format, std::forward<Args>(args)...));
}

// Flushes the standard output. False where something of it was lost, other than to a reader who had seen enough.
bool finish_output();

}  // namespace orthant
