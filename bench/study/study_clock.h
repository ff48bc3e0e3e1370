// The wall time of a study and of each of its points, kept on disk while it passes: a session that is killed has
// counted too, but for its last second.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace orthant {

// One session of a study. Its file, clock.json, is written every second and whenever a point begins or ends:
//   {"seconds": of the study, "points": {id: of its runs}}
// All its times are of one moment, so that a point never counts more than the study.
// A file that cannot be written or read costs no more than what it knew.
// Thread safety: none; a thread of its own writes the file.
class StudyClock {
 public:
  // before: seconds of earlier sessions as the card has them. It goes on from what the file knows where that is more.
  StudyClock(std::filesystem::path file, double before);
  ~StudyClock();
  StudyClock(const StudyClock&) = delete;
  StudyClock& operator=(const StudyClock&) = delete;

  double seconds() const;  // of all sessions

  // A run of the point starts. has_run: it has run before; where the file knows nothing of that, the point's time stays
  // unknown.
  void begin(const std::string& point, bool has_run);
  void end(const std::string& point);
  // Of all its runs, those of killed sessions too; nothing where it is not known.
  std::optional<double> seconds_of(const std::string& point) const;

 private:
  using Moment = std::chrono::steady_clock::time_point;
  struct PointTime {
    double before = 0;            // of runs that have ended
    std::optional<Moment> begin;  // of the one that runs
    double seconds(Moment now) const;
  };

  void read();
  double seconds_so_far(Moment now) const;
  void write() const;
  void tick(const std::stop_token& stopped);

  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  double before_;
  const Moment begin_;
  std::map<std::string, PointTime> points_;
  std::jthread writer_;  // last: it uses the others
};

}  // namespace orthant
