#include "apps/serve/model_loop.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <new>
#include <numeric>
#include <utility>

namespace orthant {
namespace {

ApiError ending() {
  return {503, "the server is ending", "", "server_ending"};
}

}  // namespace

ModelLoop::ModelLoop(Generator& generator, std::size_t batch, std::size_t capacity)
    : generator_(generator), batch_(batch), capacity_(capacity) {}

std::shared_ptr<AnswerChannel> ModelLoop::ask(std::vector<Request> choices) {
  const std::lock_guard lock(mutex_);
  if (ending_) {
    throw ending();
  }
  std::erase_if(waiting_, [](const Asked& asked) { return asked.channel->over(); });  // clients that have gone
  const std::size_t waiting = std::transform_reduce(waiting_.begin(), waiting_.end(), std::size_t{0}, std::plus<>(),
                                                    [](const Asked& asked) { return asked.waiting(); });
  if (choices.size() > 1 && waiting + choices.size() > capacity_) {
    throw ApiError(
        503,
        fmt::format("{} answers wait already, and this asks for {} more, of {} that may wait: try again later, or ask "
                    "for one",
                    waiting, choices.size(), capacity_),
        "", "queue_full");
  }
  auto channel = std::make_shared<AnswerChannel>(choices.size());
  waiting_.push_back({.channel = channel, .choices = std::move(choices)});
  asked_.notify_one();
  return channel;
}

void ModelLoop::end(std::chrono::milliseconds grace) {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  deadline_ = Clock::now() + grace;
  asked_.notify_one();
}

void ModelLoop::run() {
  while (wait_for_work()) {
    fill();
    tell_state();
    step();
    std::erase_if(active_, [](const auto& channel) { return channel->over(); });
    tell_state();
  }
  fail_all(ending());
}

// False: this is the end.
bool ModelLoop::wait_for_work() {
  std::unique_lock lock(mutex_);
  if (generator_.waiting() == 0) {
    asked_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
  }
  return !ending_ || (Clock::now() < deadline_ && (generator_.waiting() > 0 || !waiting_.empty()));
}

void ModelLoop::fill() {
  while (generator_.waiting() < batch_) {
    std::unique_lock lock(mutex_);
    std::erase_if(waiting_, [](const Asked& asked) { return asked.channel->over(); });
    if (waiting_.empty()) {
      return;
    }
    const auto next = std::min_element(waiting_.begin(), waiting_.end(),
                                       [](const Asked& a, const Asked& b) { return a.under_way() < b.under_way(); });
    const std::shared_ptr<AnswerChannel> channel = next->channel;
    const std::size_t choice = next->started++;
    Request request = std::move(next->choices[choice]);
    const Clock::time_point since = next->since;
    if (next->waiting() == 0) {
      waiting_.erase(next);
    }
    lock.unlock();
    start(channel, choice, std::move(request), since);
  }
}

void ModelLoop::start(const std::shared_ptr<AnswerChannel>& channel, std::size_t choice, Request request,
                      Clock::time_point since) {
  metrics_.began(static_cast<std::int64_t>(request.prompt.size()));
  request.on_token = [this, channel, choice, since, first = true](const TokenEvent& event) mutable {
    if (!event.of_prompt) {
      metrics_.token(first, std::chrono::duration<double>(Clock::now() - since).count());
      first = false;
    }
    const bool wanted = channel->put(choice, event);
    if (event.finish.has_value() || !wanted) {
      metrics_.ended(event.finish.has_value() ? name_of(*event.finish) : "abort");
    }
    return wanted;
  };
  request.on_error = [this, channel](const Error& error) {
    metrics_.ended("error");
    channel->fail({error.code() == ExitCode::bad_configuration ? 400 : 500, error.what()});
  };
  try {
    generator_.add(std::move(request));
  } catch (const Error& error) {
    channel->fail({400, error.what()});
    return;
  }
  if (std::find(active_.begin(), active_.end(), channel) == active_.end()) {
    active_.push_back(channel);
  }
}

void ModelLoop::tell_state() {
  const PrefixCache& prefixes = generator_.prefixes();
  ModelState state{.running = static_cast<std::int64_t>(generator_.waiting()),
                   .pages = generator_.pages(),
                   .kept_pages = prefixes.pages(),
                   .prefix_tokens = prefixes.asked(),
                   .prefix_found = prefixes.found()};
  const std::lock_guard lock(mutex_);
  for (const Asked& asked : waiting_) {
    state.waiting += static_cast<std::int64_t>(asked.waiting());
  }
  metrics_.update(state);
}

void ModelLoop::step() {
  std::string why;
  try {
    generator_.step();
    return;
  } catch (const std::bad_alloc&) {
    why = "out of memory: fewer answers at once (--batch) or shorter ones (--context) need less";
  } catch (const std::exception& error) {
    why = error.what();
  }
  generator_.clear();
  for (const auto& channel : active_) {
    channel->fail({500, why});
  }
  active_.clear();
}

void ModelLoop::fail_all(const ApiError& error) {
  generator_.clear();
  const std::lock_guard lock(mutex_);
  for (const auto& channel : active_) {
    channel->fail(error);
  }
  for (const Asked& asked : waiting_) {
    asked.channel->fail(error);
  }
  active_.clear();
  waiting_.clear();
}

}  // namespace orthant
