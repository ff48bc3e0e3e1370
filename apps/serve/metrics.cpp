#include "apps/serve/metrics.h"

#include <fmt/format.h>

namespace orthant {

void Metrics::update(const ModelState& state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
}

void Metrics::began(std::int64_t prompt_tokens) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += prompt_tokens;
}

void Metrics::token(bool first, double seconds) {
  const std::lock_guard lock(mutex_);
  ++tokens_;
  if (!first) {
    return;
  }
  ++firsts_;
  seconds_ += seconds;
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    within_[i] += seconds <= bounds_[i] ? 1 : 0;
  }
}

void Metrics::ended(const std::string& how) {
  const std::lock_guard lock(mutex_);
  ++ended_[how];
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string made;
  const auto head = [&](const char* name, const char* type, const char* help) {
    made += fmt::format("# HELP orthant_{} {}\n# TYPE orthant_{} {}\n", name, help, name, type);
  };
  const auto one = [&](const char* name, const char* type, const char* help, std::int64_t value) {
    head(name, type, help);
    made += fmt::format("orthant_{} {}\n", name, value);
  };
  one("requests_running", "gauge", "Answers that are worked on.", state_.running);
  one("requests_waiting", "gauge", "Answers that wait for a place.", state_.waiting);
  one("prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens_);
  one("generation_tokens_total", "counter", "Tokens of answers.", tokens_);
  one("prefix_cache_queries_total", "counter", "Tokens of prompts that were looked for in the prefix cache.",
      state_.prefix_tokens);
  one("prefix_cache_hits_total", "counter", "Tokens of prompts that the prefix cache had.", state_.prefix_found);
  one("kv_pages_used", "gauge", "Pages of keys and values of answers that are worked on, 64 tokens each.",
      state_.pages);
  one("prefix_cache_pages", "gauge", "Pages that are kept for prompts with equal beginnings.", state_.kept_pages);
  head("requests_total", "counter", "Answers that have ended, by how.");
  for (const auto& [how, count] : ended_) {
    made += fmt::format("orthant_requests_total{{finished_reason=\"{}\"}} {}\n", how, count);
  }
  head("time_to_first_token_seconds", "histogram", "From the request to the first token of its answer.");
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    made += fmt::format("orthant_time_to_first_token_seconds_bucket{{le=\"{}\"}} {}\n", bounds_[i], within_[i]);
  }
  made += fmt::format("orthant_time_to_first_token_seconds_bucket{{le=\"+Inf\"}} {}\n", firsts_);
  made += fmt::format("orthant_time_to_first_token_seconds_sum {}\n", seconds_);
  made += fmt::format("orthant_time_to_first_token_seconds_count {}\n", firsts_);
  return made;
}

}  // namespace orthant
