#include "parallel/process_state.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace orthant {

namespace {

// "S 1234 ...": what stands behind the program's name, which may hold anything; empty where nothing is known.
std::string behind_name(pid_t process) {
  std::ifstream in(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(in, text);
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 4 < text.size() ? text.substr(name_end + 2) : "";
}

}  // namespace

char process_state(pid_t process) {
  const std::string text = behind_name(process);
  return text.empty() ? char{0} : text[0];
}

pid_t parent_process(pid_t process) {
  const std::string text = behind_name(process);
  return text.empty() ? 0 : std::atoi(text.c_str() + 2);
}

bool is_stopped(char state) {
  return state == 'T' || state == 't';
}

}  // namespace orthant
