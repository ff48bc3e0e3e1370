// Console: the launcher's own output, shared by all ranks' lines and one progress line.
//
// It never waits for a reader: a terminal that was stopped or a pager that nobody scrolls holds up neither the ranks
// nor the launcher. Lines wait in a bounded buffer; those beyond are dropped and counted, the logs have them. Words of
// the launcher itself come through.
//
// A rank's progress is text after a carriage return and without a newline ("\rstep 10/200 ..."). On a terminal it
// passes through unprefixed and stays at the bottom: lines of ranks are printed above it. Elsewhere it is dropped.
// Thread safety: none, the supervisor's loop is one thread.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/output.h"

namespace orthant {

class Console {
 public:
  // plain: lines only, though isatty may say terminal (mpirun gives its ranks one of their own, whatever it writes to).
  Console(int output, int error, bool plain = false);

  // The width of the terminal that shows progress; 0 where the output is none.
  int columns() const;

  void output_line(std::string_view line) { write_line(output_, output_is_terminal_, line, false); }
  void error_line(std::string_view line) { write_line(error(), error_is_terminal_, line, false); }
  // A line of the launcher itself, on the error stream: "launch: ...".
  void say(std::string_view text);
  void progress(std::string_view text);
  void end_progress();

  // Writes what can be written now, of what waits.
  void flush();
  std::size_t waiting() const;  // bytes
  // Adds what to poll for room while something waits.
  void watch(std::vector<pollfd>& watched) const;

 private:
  // Where both are one file or terminal their lines keep their order.
  OutputSink& error() { return error_ ? *error_ : output_; }
  void write_line(OutputSink& sink, bool is_terminal, std::string_view line, bool matters);
  static void tell_of_dropped(OutputSink& sink);

  int output_descriptor_;
  OutputSink output_;
  std::optional<OutputSink> error_;
  bool output_is_terminal_;
  bool error_is_terminal_;
  std::string progress_;
};

}  // namespace orthant
