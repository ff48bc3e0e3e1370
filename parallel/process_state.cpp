#include "parallel/process_state.h"

#include <fmt/format.h>

#include <fstream>
#include <string>

namespace orthant {

char process_state(pid_t process) {
  std::ifstream in(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(in, text);
  const std::size_t name_end = text.rfind(')');  // the program's name may hold anything
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : char{0};
}

bool is_stopped(char state) {
  return state == 'T' || state == 't';
}

}  // namespace orthant
