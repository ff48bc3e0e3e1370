// A file that is cut short while it is mapped: the process is told by a signal (SIGBUS), and says which file it was.
#pragma once

namespace orthant {

// From now on such a signal ends this process with exit code 1 and one line on the standard error that names the file.
// What is no file keeps the system's way. For the main() of programs. Thread safety: before other threads start.
void explain_cut_files();

}  // namespace orthant
