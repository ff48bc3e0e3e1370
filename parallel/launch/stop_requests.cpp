#include "parallel/launch/stop_requests.h"

#include <fmt/format.h>
#include <signal.h>

#include <cstring>

namespace orthant {

StopRequests::Meaning StopRequests::hear(int number, Clock::time_point now) {
  if (number == SIGUSR1) {
    if (asked_) {
      return Meaning::nothing;
    }
    asked_ = true;
    return Meaning::stop;
  }
  if (requests_ == 1 && number != SIGINT && !repeated_ && now - first_ < same_request) {
    repeated_ = true;
    return Meaning::nothing;
  }
  if (++requests_ > 1) {
    return Meaning::kill;
  }
  first_ = now;
  asked_ = true;
  return Meaning::stop;
}

std::string stop_text(int number) {
  const char* kills = number == SIGUSR1 ? "two of Ctrl-C kill them" : "once more to kill them";
  return fmt::format("{}: the ranks finish their step and save ({})", strsignal(number), kills);
}

}  // namespace orthant
