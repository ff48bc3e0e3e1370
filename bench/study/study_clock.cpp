#include "bench/study/study_clock.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include <orthant/error.h>

#include "core/base/text_file.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds interval(1);

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// A time that can have passed; nothing else is taken from a file.
std::optional<double> time_in(const nlohmann::json& value) {
  const bool good = value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0;
  return good ? std::optional<double>(value.get<double>()) : std::nullopt;
}

}  // namespace

double StudyClock::PointTime::seconds(Moment now) const {
  return before + (begin ? seconds_between(*begin, now) : 0);
}

StudyClock::StudyClock(fs::path file, double before) : file_(std::move(file)), before_(before), begin_(Clock::now()) {
  read();
  write();
  writer_ = std::jthread([this](const std::stop_token& stopped) { tick(stopped); });  // nobody to wait for till here
}

StudyClock::~StudyClock() {
  writer_.request_stop();
  writer_.join();
  const std::lock_guard lock(mutex_);
  write();
}

void StudyClock::read() {
  std::optional<std::string> text;
  try {
    text = read_text_file(file_);
  } catch (const Error&) {
    return;
  }
  const nlohmann::json known = nlohmann::json::parse(text.value_or(""), nullptr, false);
  if (!known.is_object()) {
    return;
  }
  before_ = std::max(before_, time_in(known.value("seconds", nlohmann::json())).value_or(0));
  const nlohmann::json points = known.value("points", nlohmann::json::object());
  for (const auto& [id, value] : points.items()) {
    if (const std::optional<double> seconds = time_in(value)) {
      points_[id].before = *seconds;
    }
  }
}

double StudyClock::seconds_so_far(Moment now) const {
  return before_ + seconds_between(begin_, now);
}

double StudyClock::seconds() const {
  const std::lock_guard lock(mutex_);
  return seconds_so_far(Clock::now());
}

void StudyClock::begin(const std::string& point, bool has_run) {
  const std::lock_guard lock(mutex_);
  const auto known = points_.find(point);
  if (known != points_.end()) {
    known->second.begin = Clock::now();
  } else if (!has_run) {
    points_[point].begin = Clock::now();
  }
  write();
}

void StudyClock::end(const std::string& point) {
  const std::lock_guard lock(mutex_);
  if (const auto known = points_.find(point); known != points_.end()) {
    known->second.before = known->second.seconds(Clock::now());
    known->second.begin.reset();
  }
  write();
}

std::optional<double> StudyClock::seconds_of(const std::string& point) const {
  const std::lock_guard lock(mutex_);
  const auto known = points_.find(point);
  return known == points_.end() ? std::nullopt : std::optional<double>(known->second.seconds(Clock::now()));
}

// Beside the file and then in its place: a kill leaves the old one or the new one. It is not synced, for timings go on
// meanwhile: only the system's end can lose it.
void StudyClock::write() const {
  const Moment now = Clock::now();
  nlohmann::json known = {{"seconds", seconds_so_far(now)}, {"points", nlohmann::json::object()}};
  for (const auto& [id, time] : points_) {
    known["points"][id] = time.seconds(now);
  }
  fs::path beside = file_;
  beside += ".new";
  std::ofstream out(beside);
  out << known.dump() << "\n";
  out.close();
  std::error_code ignored;
  if (out.good()) {
    fs::rename(beside, file_, ignored);
  }
}

void StudyClock::tick(const std::stop_token& stopped) {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, stopped, interval, [&] { return stopped.stop_requested(); })) {
    write();
  }
}

}  // namespace orthant
