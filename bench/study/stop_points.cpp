#include "bench/study/stop_points.h"

#include <orthant/error.h>
#include <signal.h>
#include <string.h>

#include "core/base/stop_signals.h"

namespace orthant {

void wait_or_give_up(double seconds) {
  const int number = next_stop_signal(seconds);
  if (number != 0 && number != SIGUSR1) {  // a scheduler's warning may come again; launch takes it so, too
    throw Error(fmt::format("{} again: what ran is killed. Go on with --resume; a point goes on from its newest "
                            "checkpoint",
                            strsignal(number)),
                static_cast<ExitCode>(128 + number));
  }
}

}  // namespace orthant
