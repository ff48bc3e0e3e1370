// orthant eval RUN|DIR FILES... [--task FILE.jsonl]: perplexity, bits per byte, and tasks.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/eval/evaluate.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant {
namespace {

void print_tables(const Evaluation& evaluation) {
  put("tokenizer {}, windows of {} tokens, texts begin {} bos\n", evaluation.tokenizer, evaluation.length,
      evaluation.bos ? "with" : "without");
  if (!evaluation.files.empty()) {
    put("{:>10} {:>10} {:>11} {:>11} {:>10}  {}\n", "bytes", "tokens", "nats/token", "perplexity", "bits/byte", "text");
  }
  for (const FileScore& score : evaluation.files) {
    put("{:>10} {:>10} {:>11.5f} {:>11.4f} {:>10.5f}  {}\n", score.bytes, score.tokens, score.nats_per_token(),
        score.perplexity(), score.bits_per_byte(), score.file);
  }
  if (!evaluation.tasks.empty()) {
    put("{:>10} {:>10} {:>16}  {}\n", "questions", "right", "right per token", "task");
  }
  for (const TaskScore& score : evaluation.tasks) {
    const auto share = [&](std::int64_t right) {
      return fmt::format("{:.2f}%", 100 * static_cast<double>(right) / static_cast<double>(score.questions));
    };
    put("{:>10} {:>10} {:>16}  {}\n", score.questions, share(score.right),
        score.kind == TaskKind::exact ? "exact" : share(score.right_per_token), score.file);
  }
}

// Of models of other kinds than decoders.
void print_measured(const Evaluation& evaluation) {
  for (const MeasuredFile& one : evaluation.measured) {
    put("{}: loss {:.5f}", one.file, one.loss);
    for (const auto& [name, value] : one.figures) {
      put(", {} {:.4f}", name, value);
    }
    put(" ({} labels in {} sequences)\n", one.labels, one.sequences);
  }
}

void print_measured_json(const Evaluation& evaluation) {
  nlohmann::ordered_json json = {{"length", evaluation.length}, {"files", nlohmann::ordered_json::array()}};
  for (const MeasuredFile& one : evaluation.measured) {
    nlohmann::ordered_json file = {
        {"file", one.file}, {"sequences", one.sequences}, {"labels", one.labels}, {"loss", one.loss}};
    for (const auto& [name, value] : one.figures) {
      file[name] = value;
    }
    json["files"].push_back(file);
  }
  put("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void print_json(const Evaluation& evaluation) {
  nlohmann::ordered_json json = {{"tokenizer", evaluation.tokenizer},
                                 {"length", evaluation.length},
                                 {"bos", evaluation.bos},
                                 {"files", nlohmann::ordered_json::array()},
                                 {"tasks", nlohmann::ordered_json::array()}};
  for (const FileScore& score : evaluation.files) {
    json["files"].push_back({{"file", score.file},
                             {"bytes", score.bytes},
                             {"tokens", score.tokens},
                             {"nats_per_token", score.nats_per_token()},
                             {"perplexity", score.perplexity()},
                             {"bits_per_byte", score.bits_per_byte()}});
  }
  for (const TaskScore& score : evaluation.tasks) {
    const bool exact = score.kind == TaskKind::exact;
    nlohmann::ordered_json task = {{"file", score.file},
                                   {"kind", exact ? "exact" : "likelihood"},
                                   {"questions", score.questions},
                                   {"right", score.right}};
    if (exact) {
      task["answers"] = score.answers;
    } else {
      task["right_per_token"] = score.right_per_token;
    }
    json["tasks"].push_back(task);
  }
  put("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void add_eval_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("eval");
  add_examples(*command, "  orthant eval runs/quickstart README.md");
  auto o = std::make_shared<EvalOptions>();
  auto json = std::make_shared<bool>(false), bos = std::make_shared<bool>(false);
  o->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  command->add_option("RUN", o->model, "A run's or a checkpoint's folder, or a published model's")
      ->required()
      ->check(not_empty);
  command->add_option("FILES", o->files, "Texts; of JSON lines (.jsonl, .json) the text of each row");
  command->add_option("--text-key", o->text_key, "Whose value that is; without it \"text\", else \"content\"")
      ->check(not_empty);
  command->add_option("--task", o->tasks, "JSON lines with context, choices and answer, or with prompt and answer")
      ->allow_extra_args(false);
  command->add_option("--max-tokens", o->max_tokens, "The most tokens of an answer to a prompt")
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--stop", o->stop,
                   "A text that ends such an answer, in place of the end of a line; several may be given")
      ->allow_extra_args(false);
  command->add_option("--tokenizer", o->tokenizer, "A tokenizer.json, a .model or \"bytes\"; else the model's own");
  command
      ->add_option("--length", o->length,
                   "Tokens of a window; without it the run's data.sequence_length, of a published model as many "
                   "as it has positions, at most 2048")
      ->check(CLI::Range(1, 1 << 24));
  CLI::Option* with_bos = command->add_flag(
      "--bos,!--no-bos", *bos, "Texts and questions begin with bos, or do not; else as the model's texts do");
  add_averages(*command, o->averages);
  command->add_option("--threads", o->threads, "Threads of the CPU")->check(CLI::Range(1, 4096));
  command->add_option("--set", o->overrides, "A key of the run's configuration, as for train")->allow_extra_args(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([o, json, bos, with_bos, &exit_code] {
    if (with_bos->count() > 0) {
      o->bos = *bos;
    }
    if (o->files.empty() && o->tasks.empty()) {
      throw CLI::RequiredError("FILES or --task");
    }
    const Evaluation evaluation = evaluate(*o, keys_of_plugin, kinds_of_plugin);
    if (!evaluation.measured.empty()) {
      *json ? print_measured_json(evaluation) : print_measured(evaluation);
    } else {
      *json ? print_json(evaluation) : print_tables(evaluation);
    }
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
