#include "core/eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/base/json.h"
#include "core/data/lines.h"
#include "core/data/mapped_file.h"
#include "core/eval/exact_match.h"
#include "core/eval/score.h"
#include "core/pretrained/model_tokenizer.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

// What is asked of one choice.
struct Choice {
  ScoredSequence sequence;
  std::int64_t tokens = 0;
};

struct Question {
  std::string where;  // file:line
  std::vector<Choice> choices;
  std::size_t answer = 0;
};

// A text's ids, and a task's questions, read and checked before anything is computed.
struct Text {
  FileScore score;
  std::vector<std::int32_t> ids;
};
struct Task {
  std::string file;
  TaskKind kind = TaskKind::likelihood;
  std::vector<Question> questions;  // of likelihood
  std::vector<ExactQuestion> exact;
};

class Reading {
 public:
  Reading(const Tokenizer& tokenizer, std::int64_t length) : tokenizer_(tokenizer), length_(length) {}

  Text text(const std::string& path) const {
    const MappedFile file(path);
    const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.size());
    Text text{.score = {.file = path}, .ids = tokenizer_.encode(bytes)};
    if (text.ids.size() < 2) {
      throw ConfigError(fmt::format("'{}' has {} tokens: at least 2 are needed to predict one", path, text.ids.size()));
    }
    text.score.bytes = static_cast<std::int64_t>(file.size());
    text.score.tokens = static_cast<std::int64_t>(text.ids.size()) - 1;
    return text;
  }

  Task task(const std::string& path) const {
    Task task{.file = path, .questions = {}, .exact = {}};
    const std::size_t lines = for_each_line(path, [&](std::string_view line, const std::string& where) {
      const Json json = parse_json(std::as_bytes(std::span(line)), where);
      const TaskKind kind = json.contains("prompt") ? TaskKind::exact : TaskKind::likelihood;
      if (task.questions.empty() && task.exact.empty()) {
        task.kind = kind;
      }
      require(kind == task.kind, "{}: a file has questions of one kind, with 'context' and 'choices' or with 'prompt'",
              where);
      if (kind == TaskKind::exact) {
        task.exact.push_back(exact_question(json, where));
      } else {
        task.questions.push_back(question(json, where));
      }
    });
    if (lines == 0) {
      throw ConfigError(fmt::format("'{}' has no question", path));
    }
    return task;
  }

 private:
  static ExactQuestion exact_question(const Json& json, const std::string& where) {
    ExactQuestion asked{
        .where = where, .prompt = text_at(json, "prompt", where), .answer = trimmed(text_at(json, "answer", where))};
    require(!asked.answer.empty(), "{}: 'answer' is empty: expected the text that the model should give", where);
    return asked;
  }

  Question question(const Json& json, const std::string& where) const {
    const std::string context = text_at(json, "context", where);
    const Json& choices = member(json, "choices", where);
    require(choices.is_array() && choices.size() >= 2, "{}: 'choices' must be a list of at least two texts", where);
    Question asked{
        .where = where, .choices = {}, .answer = static_cast<std::size_t>(integer_at(json, "answer", where))};
    require(asked.answer < choices.size(), "{}: 'answer' is {}, of {} choices counted from 0", where, asked.answer,
            choices.size());
    for (const Json& text : choices) {
      require(text.is_string(), "{}: 'choices' must hold texts", where);
      asked.choices.push_back(choice(context, text.get<std::string>(), where));
    }
    return asked;
  }

  // Context and choice are encoded as one text, as a model would have read them; the tokens from the first that
  // differs from the context's on are the choice's.
  Choice choice(const std::string& context, const std::string& text, const std::string& where) const {
    const std::vector<std::int32_t> before = tokenizer_.encode(context), all = tokenizer_.encode(context + text);
    std::size_t same = 0;
    while (same < before.size() && same < all.size() && before[same] == all[same]) {
      ++same;
    }
    require(same > 0, "{}: the context has no token before the choice", where);
    require(same < all.size(), "{}: the choice '{}' has no token", where, text);
    require(static_cast<std::int64_t>(all.size()) <= length_ + 1,
            "{}: {} tokens, and a window has {} positions: give a larger --length", where, all.size(), length_);
    Choice made{.sequence = {{all.begin(), all.end() - 1}, {all.begin() + 1, all.end()}},
                .tokens = static_cast<std::int64_t>(all.size() - same)};
    std::fill_n(made.sequence.label.begin(), same - 1, -1);
    return made;
  }

  const Tokenizer& tokenizer_;
  std::int64_t length_;
};

double finite(double nats, const std::string& where) {
  require(std::isfinite(nats), "{}: -log p is {} there: are the model's weights damaged, or has it diverged?", where,
          nats);
  return nats;
}

FileScore score_text(const Text& text, std::int64_t length, Scorer& scorer) {
  FileScore score = text.score;
  std::vector<ScoredSequence> batch;
  const std::size_t last = text.ids.size() - 1;
  for (std::size_t begin = 0; begin < last; begin += static_cast<std::size_t>(length)) {
    const std::size_t end = std::min(last, begin + static_cast<std::size_t>(length));
    const auto at = [&](std::size_t i) { return text.ids.begin() + static_cast<std::ptrdiff_t>(i); };
    batch.push_back({{at(begin), at(end)}, {at(begin + 1), at(end + 1)}});
    if (static_cast<std::int64_t>(batch.size()) == scorer.batch() || end == last) {
      score.nats += finite(scorer.score(batch), text.score.file);
      batch.clear();
    }
  }
  return score;
}

TaskScore score_task(const Task& task, Scorer& scorer) {
  TaskScore score{.file = task.file, .questions = static_cast<std::int64_t>(task.questions.size()), .answers = {}};
  for (const Question& question : task.questions) {
    std::size_t likeliest = 0, likeliest_mean = 0;
    double least = std::numeric_limits<double>::infinity(), least_mean = least;
    for (std::size_t i = 0; i < question.choices.size(); ++i) {
      const double nats = finite(scorer.score(std::span(&question.choices[i].sequence, 1)), question.where);
      const double mean = nats / static_cast<double>(question.choices[i].tokens);
      if (nats < least) {
        least = nats;
        likeliest = i;
      }
      if (mean < least_mean) {
        least_mean = mean;
        likeliest_mean = i;
      }
    }
    score.right += likeliest == question.answer ? 1 : 0;
    score.right_per_token += likeliest_mean == question.answer ? 1 : 0;
  }
  return score;
}

TaskScore score_exact(const Task& task, const OpenedModel& model, const Tokenizer& tokenizer,
                      const EvalOptions& options) {
  TaskScore score{
      .file = task.file,
      .kind = TaskKind::exact,
      .questions = static_cast<std::int64_t>(task.exact.size()),
      .answers = exact_answers(model, tokenizer, task.exact,
                               {.max_tokens = options.max_tokens, .stop = options.stop, .threads = options.threads})};
  for (std::size_t i = 0; i < task.exact.size(); ++i) {
    score.right += score.answers[i] == task.exact[i].answer ? 1 : 0;
  }
  return score;
}

}  // namespace

double FileScore::perplexity() const {
  return std::exp(nats_per_token());
}

double FileScore::bits_per_byte() const {
  return bytes > 0 ? nats / std::numbers::ln2 / static_cast<double>(bytes) : 0;
}

Evaluation evaluate(const EvalOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  if (options.files.empty() && options.tasks.empty()) {
    throw ConfigError("there is nothing to evaluate: give text files, or --task FILE.jsonl");
  }
  std::vector<std::string> overrides = options.overrides;
  if (options.length > 0) {
    overrides.push_back(fmt::format("data.sequence_length={}", options.length));
  }
  const OpenedModel model(options.model, "eval", overrides, plugin_keys, plugin_kinds);
  const Settings& settings = model.config().settings;
  if (options.length > 0 && settings.model.positions == Positions::learned) {
    throw ConfigError(fmt::format("--length {}: the model has learned its positions, and has no others: leave it out",
                                  options.length));
  }
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_of(model, options.tokenizer);
  const std::int64_t length = settings.data.sequence_length;
  Evaluation evaluation{.tokenizer = tokenizer->name(), .length = length, .files = {}, .tasks = {}};
  const Reading reading(*tokenizer, length);
  std::vector<Text> texts;
  for (const std::string& file : options.files) {
    texts.push_back(reading.text(file));
  }
  std::vector<Task> tasks;
  for (const std::string& file : options.tasks) {
    tasks.push_back(reading.task(file));
  }
  const auto likelihood = [](const Task& task) { return task.kind == TaskKind::likelihood; };
  const bool scores = !texts.empty() || std::any_of(tasks.begin(), tasks.end(), likelihood);
  evaluation.tasks.resize(tasks.size());
  if (scores) {
    run_threads(1, [&](Communicator& communicator) {
      Scorer scorer(model, length, options.threads, communicator);
      for (const Text& text : texts) {
        evaluation.files.push_back(score_text(text, length, scorer));
      }
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (likelihood(tasks[i])) {
          evaluation.tasks[i] = score_task(tasks[i], scorer);
        }
      }
    });
  }
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (!likelihood(tasks[i])) {
      evaluation.tasks[i] = score_exact(tasks[i], model, *tokenizer, options);
    }
  }
  return evaluation;
}

}  // namespace orthant
