#include "apps/eval/exact_match.h"

#include "apps/lm/engine.h"
#include "apps/lm/generator.h"
#include "apps/lm/prompt.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

constexpr std::size_t answers_at_once = 32;

}  // namespace

std::string trimmed(const std::string& text) {
  constexpr const char* around = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(around);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(around) - begin + 1);
}

std::vector<std::string> exact_answers(const OpenedModel& model, const Tokenizer& tokenizer,
                                       const std::vector<ExactQuestion>& questions, const ExactOptions& options) {
  std::vector<std::string> answers(questions.size());
  std::string failure;
  const AnswerEnds ends = answer_ends(&tokenizer, model.text_rules(), model.config().settings.model.vocab_size);
  run_threads(1, [&](Communicator& communicator) {
    Engine engine(model, {.threads = options.threads}, communicator);
    Generator generator(engine, &tokenizer, answers_at_once);
    for (std::size_t i = 0; i < questions.size(); ++i) {
      Request request{.prompt = {},
                      .max_tokens = options.max_tokens,
                      .sampling = {.temperature = 0},
                      .stop_ids = ends.ids,
                      .stop = options.stop.empty() ? std::vector<std::string>{"\n"} : options.stop};
      request.stop.insert(request.stop.end(), ends.texts.begin(), ends.texts.end());
      request.on_token = [&, i](const TokenEvent& event) {
        answers[i] += event.text;
        return true;
      };
      request.on_error = [&, i](const Error& error) {
        failure = fmt::format("{}: {}", questions[i].where, error.what());
      };
      try {
        request.prompt = prompt_ids(tokenizer, model.text_rules(), questions[i].prompt, options.bos);
        generator.add(std::move(request));
      } catch (const Error& error) {
        throw ConfigError(fmt::format("{}: {}", questions[i].where, error.what()));
      }
    }
    while (generator.step()) {
      require(failure.empty(), "{}", failure);
    }
    require(failure.empty(), "{}", failure);
  });
  for (std::string& answer : answers) {
    answer = trimmed(answer);
  }
  return answers;
}

}  // namespace orthant
