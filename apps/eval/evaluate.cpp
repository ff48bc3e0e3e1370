#include "apps/eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "apps/eval/exact_match.h"
#include "apps/eval/pairs.h"
#include "apps/eval/score.h"
#include "apps/lm/divided_model.h"
#include "apps/pretrained/model_tokenizer.h"
#include "apps/pretrained/setting_key.h"
#include "core/arch/decoder.h"
#include "core/base/json.h"
#include "core/base/mapped_file.h"
#include "core/data/lines.h"
#include "core/data/not_text.h"
#include "core/data/text_file.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

// What is asked of one choice.
struct Choice {
  ScoredSequence sequence;
  std::int64_t tokens = 0;
  double nats = 0;  // -log p of them
};

struct Question {
  std::string where;  // file:line
  std::vector<Choice> choices;
  std::size_t answer = 0;
};

// A text's ids, and a task's questions, read and checked before anything is computed.
struct Text {
  FileScore score;
  std::vector<std::vector<std::int32_t>> documents;  // ids: of the file, or of each of its rows
  std::vector<ScoredSequence> pairs = {};            // in their place, of a model whose answers have a source
};
struct Task {
  std::string file;
  TaskKind kind = TaskKind::likelihood;
  std::vector<Question> questions;  // of likelihood
  std::vector<ExactQuestion> exact;
};

class Reading {
 public:
  // pairs: of a model whose answers have a source, else null.
  Reading(const Tokenizer& tokenizer, const TextRules& rules, bool bos, std::int64_t length, const PairReader* pairs)
      : tokenizer_(tokenizer), reader_(tokenizer, rules), bos_(bos), length_(length), pairs_(pairs) {}

  // A file of plain text is one document, a file of JSON lines one a row.
  Text text(const std::string& path, const std::string& text_key) {
    Text text{.score = {.file = path}, .documents = {}};
    if (pairs_ != nullptr) {
      PairReader::File file = pairs_->file(path);
      text.score.bytes = file.bytes;
      text.score.tokens = file.tokens;
      text.pairs = std::move(file.pairs);
      return text;
    }
    if (is_json_lines(path)) {
      const TextFile file(path, {.text_key = text_key});
      std::string decoded;
      for (const Document& row : file.documents()) {
        add(text, file.text(row, decoded));
      }
    } else {
      const MappedFile file(path);
      require_text(file);
      add(text, {reinterpret_cast<const char*>(file.bytes().data()), file.size()});
    }
    if (text.score.tokens == 0) {
      throw ConfigError(
          text.documents.size() == 1
              ? fmt::format("'{}' has {} tokens: at least 2 are needed to predict one", path, text.documents[0].size())
              : fmt::format("'{}' has no row of 2 tokens: at least as many are needed to predict one", path));
    }
    return text;
  }

  Task task(const std::string& path) {
    Task task{.file = path, .questions = {}, .exact = {}};
    const std::size_t lines = for_each_line(path, [&](std::string_view line, const std::string& where) {
      const Json json = parse_json(std::as_bytes(std::span(line)), where);
      const bool pair = pairs_ != nullptr && json.contains("source");
      require(json.contains("context") || json.contains("prompt") || pair,
              "{}: expected an object with 'context', 'choices' and 'answer', or with 'prompt' and 'answer'", where);
      const TaskKind kind = json.contains("context") ? TaskKind::likelihood : TaskKind::exact;
      if (task.questions.empty() && task.exact.empty()) {
        task.kind = kind;
      }
      require(kind == task.kind, "{}: a file has questions of one kind, with 'context' and 'choices' or with 'prompt'",
              where);
      if (kind == TaskKind::exact) {
        task.exact.push_back(pair ? exact_question(json, where, "source", "target")
                                  : exact_question(json, where, "prompt", "answer"));
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
  void add(Text& to, std::string_view bytes) {
    std::vector<std::int32_t> ids = tokenizer_.encode(bytes);
    if (bos_ && (ids.empty() || ids.front() != *tokenizer_.special().bos)) {
      ids.insert(ids.begin(), *tokenizer_.special().bos);
    }
    to.score.bytes += static_cast<std::int64_t>(bytes.size());
    to.score.tokens += std::max<std::int64_t>(static_cast<std::int64_t>(ids.size()) - 1, 0);
    to.documents.push_back(std::move(ids));
  }

  static ExactQuestion exact_question(const Json& json, const std::string& where, const char* prompt,
                                      const char* answer) {
    ExactQuestion asked{
        .where = where, .prompt = text_at(json, prompt, where), .answer = trimmed(text_at(json, answer, where))};
    require(!asked.answer.empty(), "{}: '{}' is empty: expected the text that the model should give", where, answer);
    return asked;
  }

  std::vector<std::int32_t> ids_of(std::string_view text) { return reader_.ids(text, bos_); }

  Question question(const Json& json, const std::string& where) {
    const std::string context = text_at(json, "context", where);
    const std::vector<std::int32_t> before = ids_of(context);
    const Json& choices = member(json, "choices", where);
    require(choices.is_array() && choices.size() >= 2, "{}: 'choices' must be a list of at least two texts", where);
    Question asked{
        .where = where, .choices = {}, .answer = static_cast<std::size_t>(integer_at(json, "answer", where))};
    require(asked.answer < choices.size(), "{}: 'answer' is {}, of {} choices counted from 0", where, asked.answer,
            choices.size());
    for (const Json& text : choices) {
      require(text.is_string(), "{}: 'choices' must hold texts", where);
      asked.choices.push_back(choice(context, before, text.get<std::string>(), where));
    }
    return asked;
  }

  // Context and choice are encoded as one text, as a model would have read them; the tokens from the first that
  // differs from the context's on are the choice's.
  Choice choice(const std::string& context, const std::vector<std::int32_t>& before, const std::string& text,
                const std::string& where) {
    if (pairs_ != nullptr) {
      Choice made{.sequence = pairs_->sequence(context, text, where)};
      made.tokens = static_cast<std::int64_t>(made.sequence.label.size());
      return made;
    }
    const std::vector<std::int32_t> all = ids_of(context + text);
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
  TextReader reader_;
  bool bos_;
  std::int64_t length_;
  const PairReader* pairs_;
};

double finite(double nats, const std::string& where) {
  require(std::isfinite(nats), "{}: -log p is {} there: are the model's weights damaged, or has it diverged?", where,
          nats);
  return nats;
}

FileScore score_text(const Text& text, std::int64_t length, Scorer& scorer) {
  FileScore score = text.score;
  const bool one = text.documents.size() == 1 && text.pairs.empty();
  const std::int64_t at_once = one ? scorer.batch(length) : scorer.strangers(length);
  std::vector<ScoredSequence> batch;
  const auto take = [&] {
    for (const double nats : batch.empty() ? std::vector<double>() : scorer.score(batch)) {
      score.nats += finite(nats, text.score.file);
    }
    batch.clear();
  };
  for (const ScoredSequence& pair : text.pairs) {
    batch.push_back(pair);
    if (static_cast<std::int64_t>(batch.size()) == at_once) {
      take();
    }
  }
  for (const std::vector<std::int32_t>& ids : text.documents) {
    const std::size_t last = ids.size() < 2 ? 0 : ids.size() - 1;
    for (std::size_t begin = 0; begin < last; begin += static_cast<std::size_t>(length)) {
      const std::size_t end = std::min(last, begin + static_cast<std::size_t>(length));
      const auto at = [&](std::size_t i) { return ids.begin() + static_cast<std::ptrdiff_t>(i); };
      batch.push_back({{at(begin), at(end)}, {at(begin + 1), at(end + 1)}});
      if (static_cast<std::int64_t>(batch.size()) == at_once) {
        take();
      }
    }
  }
  take();
  return score;
}

// Choices of about one length together, so that little of a batch is padding.
void score_choices(Task& task, Scorer& scorer) {
  struct Asked {
    Choice* choice;
    const std::string* where;
    std::int64_t length() const { return static_cast<std::int64_t>(choice->sequence.token.size()); }
  };
  std::vector<Asked> all;
  for (Question& question : task.questions) {
    for (Choice& choice : question.choices) {
      all.push_back({&choice, &question.where});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Asked& a, const Asked& b) { return a.length() > b.length(); });
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end = begin + std::min<std::ptrdiff_t>(all.end() - begin, scorer.strangers(begin->length()));
    std::vector<ScoredSequence> batch;
    std::transform(begin, end, std::back_inserter(batch), [](const Asked& a) { return a.choice->sequence; });
    const std::vector<double> nats = scorer.score(batch);
    for (std::size_t i = 0; i < nats.size(); ++i, ++begin) {
      begin->choice->nats = finite(nats[i], *begin->where);
    }
  }
}

TaskScore score_task(Task& task, Scorer& scorer) {
  score_choices(task, scorer);
  TaskScore score{.file = task.file, .questions = static_cast<std::int64_t>(task.questions.size()), .answers = {}};
  for (const Question& question : task.questions) {
    const auto likeliest = [&](auto&& nats) {
      const auto less = [&](const Choice& a, const Choice& b) { return nats(a) < nats(b); };
      const auto found = std::min_element(question.choices.begin(), question.choices.end(), less);
      return static_cast<std::size_t>(found - question.choices.begin());
    };
    score.right += likeliest([](const Choice& c) { return c.nats; }) == question.answer ? 1 : 0;
    const auto mean = [](const Choice& c) { return c.nats / static_cast<double>(c.tokens); };
    score.right_per_token += likeliest(mean) == question.answer ? 1 : 0;
  }
  return score;
}

// All tasks whose answers are generated, by one engine: it is the weights, as generation holds them.
void score_exact(const std::vector<Task>& tasks, const OpenedModel& model, const Tokenizer& tokenizer,
                 const EvalOptions& options, std::vector<TaskScore>& scores) {
  std::vector<ExactQuestion> questions;
  for (const Task& task : tasks) {
    questions.insert(questions.end(), task.exact.begin(), task.exact.end());
  }
  if (questions.empty()) {
    return;
  }
  std::vector<std::string> answers = exact_answers(
      model, tokenizer, questions,
      {.bos = options.bos, .max_tokens = options.max_tokens, .stop = options.stop, .threads = options.threads});
  auto next = answers.begin();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].kind != TaskKind::exact) {
      continue;
    }
    TaskScore& score = scores[i];
    score = {.file = tasks[i].file,
             .kind = TaskKind::exact,
             .questions = static_cast<std::int64_t>(tasks[i].exact.size()),
             .answers = {}};
    for (const ExactQuestion& question : tasks[i].exact) {
      score.right += *next == question.answer ? 1 : 0;
      score.answers.push_back(std::move(*next++));
    }
  }
}

}  // namespace

double FileScore::perplexity() const {
  return std::exp(nats_per_token());
}

double FileScore::bits_per_byte() const {
  return bytes > 0 ? nats / std::numbers::ln2 / static_cast<double>(bytes) : 0;
}

namespace {

// A published model has no run whose windows it was trained with. Attention costs the square of a window.
constexpr std::int64_t longest_by_itself = 2048;

std::int64_t window_of(const EvalOptions& options, const OpenedModel& model) {
  const Settings& settings = model.config().settings;
  if (stepwise_of(settings) == nullptr) {
    require_decoder(settings, "eval");
  }
  const bool written =
      options.length > 0 || std::any_of(options.overrides.begin(), options.overrides.end(),
                                        [](const auto& set) { return setting_key(set) == "data.sequence_length"; });
  const std::int64_t most = std::min(model.published_positions(), longest_by_itself);
  const bool fits = settings.moe.group_tokens == 0 || most % settings.moe.group_tokens.written() == 0;
  return written || most == 0 || !fits ? settings.data.sequence_length : most;
}

// Models of other kinds predict no next token: their own objective says how good they are.
void require_files_alone(const EvalOptions& options, const std::string& kind) {
  const bool others = !options.tasks.empty() || options.length > 0 || options.bos.has_value() ||
                      !options.tokenizer.empty() || !options.text_key.empty();
  if (others) {
    throw ConfigError(
        fmt::format("a model of kind \"{}\" is measured by its own objective and source, which read "
                    "files: leave out --task, --length, --bos, --tokenizer and --text-key",
                    kind));
  }
}

}  // namespace

Evaluation evaluate(const EvalOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  if (options.files.empty() && options.tasks.empty()) {
    throw ConfigError("there is nothing to evaluate: give text files, or --task FILE.jsonl");
  }
  std::vector<std::string> overrides = options.overrides;
  if (options.length > 0) {
    overrides.push_back(fmt::format("data.sequence_length={}", options.length));
  }
  const OpenedModel model(options.model, "eval", overrides, plugin_keys, plugin_kinds, options.averages);
  const Settings& settings = model.config().settings;
  if (settings.model.kind != decoder_kind && stepwise_of(settings) == nullptr) {
    require_files_alone(options, settings.model.kind);
    return {.tokenizer = settings.data.tokenizer,
            .length = settings.data.sequence_length,
            .files = {},
            .tasks = {},
            .measured = measure_files(model, options.files, options.threads)};
  }
  if (options.length > 0 && settings.model.positions == Positions::learned) {
    throw ConfigError(fmt::format("--length {}: the model has learned its positions, and has no others: leave it out",
                                  options.length));
  }
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_of(model, options.tokenizer);
  const std::int64_t length = window_of(options, model);
  Evaluation evaluation{.tokenizer = tokenizer->name(), .length = length, .files = {}, .tasks = {}};
  if (options.bos.value_or(false) && !tokenizer->special().bos.has_value()) {
    throw ConfigError(fmt::format("--bos: the tokenizer {} has no such token: leave it out", tokenizer->name()));
  }
  evaluation.bos = options.bos.value_or(begins_with_bos(*tokenizer, model.text_rules()));
  std::optional<PairReader> pairs;
  if (const Stepwise* kind = stepwise_of(settings); kind != nullptr) {
    pairs.emplace(*kind, settings, *tokenizer, length);
  }
  Reading reading(*tokenizer, model.text_rules(), evaluation.bos, length, pairs.has_value() ? &*pairs : nullptr);
  std::vector<Text> texts;
  for (const std::string& file : options.files) {
    texts.push_back(reading.text(file, options.text_key));
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
  score_exact(tasks, model, *tokenizer, options, evaluation.tasks);
  return evaluation;
}

}  // namespace orthant
