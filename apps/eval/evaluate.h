// evaluate: perplexity and bits per byte of text files, and tasks whose answers are chosen by likelihood or generated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/eval/measure.h"
#include "core/config/config.h"

namespace orthant {

struct EvalOptions {
  std::filesystem::path model;     // a run's folder, a checkpoint's, or a published model's
  bool averages = false;           // the averages of the weights in their place (optimizer.ema_decay)
  std::vector<std::string> files;  // texts; of JSON lines each row is one
  std::string text_key;            // whose value the text of such a row is; empty: text, else content
  // JSON lines: {"context": T, "choices": [T, ...], "answer": i}, or {"prompt": T, "answer": T}; one kind in a file.
  std::vector<std::string> tasks;
  std::int64_t max_tokens = 64;   // of an answer that is generated
  std::vector<std::string> stop;  // texts that end one; empty: the end of a line
  std::string tokenizer;          // a file or "bytes"; empty: the model's own; without one bytes, for 256 ids
  std::optional<bool> bos = {};   // whether texts and questions begin with it; nothing: as the model's texts do
  // Positions of a window; 0: the run's data.sequence_length, of a published model those that it has, at most 2048.
  std::int64_t length = 0;
  int threads = 1;                     // of the CPU
  std::vector<std::string> overrides;  // of the run's configuration, such as moe.capacity_factor=0
};

// Every token of a file is predicted once, from the tokens before it in its window of `length`; without bos all but
// the first one.
struct FileScore {
  std::string file;
  std::int64_t bytes = 0, tokens = 0;  // of the file; that were predicted
  double nats = 0;                     // -log p of all of them
  double nats_per_token() const { return tokens > 0 ? nats / static_cast<double>(tokens) : 0; }
  double perplexity() const;
  double bits_per_byte() const;
};

enum class TaskKind {
  likelihood,  // the choice whose tokens are likeliest behind the context is the model's answer
  exact        // what it generates, always the likeliest token, is its answer: trimmed, it must be the expected text
};

struct TaskScore {
  std::string file;
  TaskKind kind = TaskKind::likelihood;
  std::int64_t questions = 0, right = 0;
  std::int64_t right_per_token = 0;  // likelihood: by the mean of a choice's tokens instead of their sum
  std::vector<std::string> answers;  // exact: to each question, trimmed
};

struct Evaluation {
  std::string tokenizer;  // as it was found
  std::int64_t length = 0;
  bool bos = false;  // whether texts and questions began with it
  std::vector<FileScore> files;
  std::vector<TaskScore> tasks;
  std::vector<MeasuredFile> measured = {};  // of a model of another kind than a decoder: all that there is
};

// Errors: ConfigError for files that are missing, empty or too short, lines that are no question (file:line), a
// tokenizer whose ids the model has not, no tokenizer where the model has other ids than bytes; those of OpenedModel,
// --length where the model's keys do not allow it included. Error for scores that are not finite, naming file or
// question.
Evaluation evaluate(const EvalOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds = {});

}  // namespace orthant
