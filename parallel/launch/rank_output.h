// RankOutput: one rank's standard output and error, as prefixed lines on the console, as a log file, and as the
// last lines to show when it fails.
#pragma once

#include <deque>
#include <filesystem>
#include <string>
#include <string_view>

#include "parallel/launch/log_file.h"
#include "parallel/launch/rank_lines.h"

namespace orthant {

class RankOutput {
 public:
  static constexpr std::size_t kTailLines = 20;

  // `log` is opened for writing, at its end where `append`. Errors: Error where it cannot be.
  RankOutput(int rank, RankLines& lines, std::filesystem::path log, bool append);

  void feed_output(std::string_view bytes) { feed(output_, bytes); }
  void feed_error(std::string_view bytes) { feed(error_, bytes); }
  // What stands unfinished at the end of a stream is a line as well.
  void finish();

  const std::deque<std::string>& tail() const { return tail_; }
  const std::filesystem::path& log_path() const { return log_.path(); }

 private:
  struct Stream {
    bool is_error;
    std::string partial;
  };

  void feed(Stream& stream, std::string_view bytes);
  void line(const Stream& stream, std::string_view text);
  void progress(std::string_view text);

  int rank_;
  RankLines& lines_;
  LogFile log_;
  Stream output_{false, {}};
  Stream error_{true, {}};
  std::deque<std::string> tail_;
};

}  // namespace orthant
