// Which signals ask for a stop, which are the same request again, and which kill.
#include "parallel/launch/stop_requests.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <utility>
#include <vector>

namespace orthant::stop_requests_test {
namespace {

using Meaning = StopRequests::Meaning;
using enum StopRequests::Meaning;

// Signals with the second at which each comes, and what each means.
std::vector<Meaning> meanings(const std::vector<std::pair<int, int>>& signals) {
  StopRequests requests;
  const StopRequests::Clock::time_point begin = StopRequests::Clock::now();
  std::vector<Meaning> found;
  for (const auto& [number, second] : signals) {
    found.push_back(requests.hear(number, begin + std::chrono::seconds(second)));
  }
  return found;
}

using Expected = std::vector<Meaning>;

TEST(StopRequests, ASchedulersSecondSigtermIsTheSameRequest) {
  EXPECT_EQ(meanings({{SIGTERM, 0}, {SIGTERM, 1}}), (Expected{stop, nothing}));
  EXPECT_EQ(meanings({{SIGTERM, 0}, {SIGTERM, 0}, {SIGTERM, 1}}), (Expected{stop, nothing, Meaning::kill}));
  EXPECT_EQ(meanings({{SIGTERM, 0}, {SIGHUP, 0}}), (Expected{stop, nothing}));
  EXPECT_EQ(meanings({{SIGTERM, 0}, {SIGTERM, 60}}), (Expected{stop, Meaning::kill}));
}

TEST(StopRequests, CtrlCTwiceKills) {
  EXPECT_EQ(meanings({{SIGINT, 0}, {SIGINT, 0}}), (Expected{stop, Meaning::kill}));
  EXPECT_EQ(meanings({{SIGTERM, 0}, {SIGINT, 1}}), (Expected{stop, Meaning::kill}));
}

TEST(StopRequests, AWarningIsNoRequestThatCounts) {
  EXPECT_EQ(meanings({{SIGUSR1, 0}, {SIGUSR1, 1}, {SIGTERM, 2}, {SIGTERM, 3}, {SIGUSR1, 4}, {SIGTERM, 5}}),
            (Expected{stop, nothing, stop, nothing, nothing, Meaning::kill}));
}

}  // namespace
}  // namespace orthant::stop_requests_test
