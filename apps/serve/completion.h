// Completion: one request of POST /v1/completions or /v1/chat/completions while it is answered, whole or as a stream of
// events.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/serve/answer_channel.h"
#include "apps/serve/choice_writer.h"
#include "apps/serve/model_loop.h"

namespace orthant {

// Thread safety: none. Its end frees the places of its answers.
class Completion {
 public:
  // open: counts those that live. The others outlive this. Errors: those of ModelLoop::ask.
  Completion(CompletionRequest request, ModelLoop& model, const Tokenizer& tokenizer, const std::string& model_name,
             std::shared_ptr<std::atomic<int>> open);
  ~Completion();
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // Takes what the model has made, waiting for some of it up to `patience`. Errors: those of AnswerChannel::take.
  void wait(std::chrono::milliseconds patience);
  bool done() const;
  bool anything() const;
  // The whole answer. REQUIRES: done().
  std::string body();
  // Server-sent events of what there is, the last of them "[DONE]"; nullopt: that was told.
  std::optional<std::string> events();

 private:
  OrderedJson head() const;
  OrderedJson usage() const;

  const CompletionRequest request_;
  const std::string model_, id_;
  const std::int64_t created_;
  std::vector<ChoiceWriter> choices_;
  std::vector<bool> told_;   // their finish
  std::vector<bool> begun_;  // of a chat: their role was told
  bool ended_ = false;
  std::shared_ptr<std::atomic<int>> open_;
  std::shared_ptr<AnswerChannel> channel_;
};

}  // namespace orthant
