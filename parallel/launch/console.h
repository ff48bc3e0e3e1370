// Console: the launcher's own output, shared by all ranks' lines and one progress line.
//
// A rank's progress is text after a carriage return and without a newline ("\rstep 10/200 ..."). On a terminal it
// passes through unprefixed and stays at the bottom: lines of ranks are printed above it. Elsewhere it is dropped.
// Thread safety: none, the supervisor's loop is one thread.
#pragma once

#include <string>
#include <string_view>

namespace orthant {

class Console {
 public:
  // plain: lines only, though isatty may say terminal (mpirun gives its ranks one of their own, whatever it writes to).
  Console(int output, int error, bool plain = false);

  // The width of the terminal that shows progress; 0 where the output is none.
  int columns() const;

  void output_line(std::string_view line) { write_line(output_, line); }
  void error_line(std::string_view line) { write_line(error_, line); }
  void progress(std::string_view text);
  void end_progress();

 private:
  void write_line(int descriptor, std::string_view line);
  void write_all(int descriptor, std::string_view text);

  int output_;
  int error_;
  bool output_is_terminal_;
  bool error_is_terminal_;
  std::string progress_;
};

}  // namespace orthant
