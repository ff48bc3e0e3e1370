// Metrics: what the server has done and is doing, in Prometheus' text format (exposition format 0.0.4).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace orthant {

// What there is at the moment, told by the model's thread.
struct ModelState {
  std::int64_t running = 0, waiting = 0;             // answers
  std::int64_t pages = 0, kept_pages = 0;            // of keys and values: of answers under way; kept for later ones
  std::int64_t prefix_tokens = 0, prefix_found = 0;  // of prompts, so far
};

// Thread safety: any thread's.
class Metrics {
 public:
  void update(const ModelState& state);
  void began(std::int64_t prompt_tokens);
  void token(bool first, double seconds);  // since the answer was asked for
  void ended(const std::string& how);      // "stop", "length", "error", "abort": the client has gone
  std::string text() const;

 private:
  static constexpr std::array<double, 14> bounds_ = {0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1,
                                                     0.25,  0.5,   1,    2.5,  5,    10,   30};
  mutable std::mutex mutex_;
  ModelState state_;
  std::int64_t prompt_tokens_ = 0, tokens_ = 0, firsts_ = 0;
  std::array<std::int64_t, bounds_.size()> within_{};  // answers whose first token came within the bound
  double seconds_ = 0;
  std::map<std::string, std::int64_t> ended_ = {{"stop", 0}, {"length", 0}, {"error", 0}, {"abort", 0}};
};

}  // namespace orthant
