// orthant generate RUN|DIR --prompt TEXT: what a model goes on with.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "apps/generate/generate_ranks.h"
#include "apps/lm/generate.h"
#include "apps/lm/memory_arguments.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

// The library reads -1 as the greatest number, and takes that for a greater one.
std::string no_seed(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? "" : "'" + text + "': expected 0 to 2^64 - 1";
}

void print_line(const GeneratedText& text, bool log_probabilities) {
  Json line = {{"prompt", text.prompt},
               {"sample", text.place.sample},
               {"text", text.text},
               {"finish", name_of(text.finish)},
               {"tokens", Json::array()}};
  for (const ScoredToken& token : text.tokens) {
    line["tokens"].push_back(token.id);
  }
  for (const ScoredToken& token : text.tokens) {
    if (log_probabilities) {
      line["log_probabilities"].push_back(token.log_probability);
    }
  }
  put("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void print_end(const GenerateOptions& o, const Generated& generated) {
  if (generated.drops_capacity) {
    say("generated without the capacity that experts have in training: no token is dropped");
  }
  say("{} tokens behind {} in {:.2f} s: {:.1f} tokens/s (tokenizer {}{})", generated.tokens, generated.prompt_tokens,
      generated.seconds, static_cast<double>(generated.tokens) / std::max(generated.seconds, 1e-9), generated.tokenizer,
      generated.ranks == 1 ? "" : fmt::format(", {} ranks", generated.ranks));
  if (o.verify) {
    const Verification& v = generated.verification;
    say("verify: {} of {} log-probabilities and {} of {} choices of experts have the bits of training's forward "
        "pass{}",
        v.equal_tokens, v.tokens, v.equal_choices, v.choices,
        v.equal() ? "" : fmt::format("; they differ by up to {:.3g}", v.largest_difference));
  }
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate");
  add_examples(*command, "  orthant generate runs/quickstart --prompt \"The router\" --max-tokens 40");
  auto o = std::make_shared<GenerateOptions>();
  auto json = std::make_shared<bool>(false), processes = std::make_shared<bool>(false);
  o->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  command->add_option("RUN", o->model, "A run's or a checkpoint's folder, or a published model's")
      ->required()
      ->check(not_empty);
  command->add_option("--prompt", o->prompts, "A text to go on with; several may be given")->allow_extra_args(false);
  command->add_option("--prompts", o->files, "JSON lines: {\"prompt\": TEXT}, or {\"ids\": [...]}")
      ->allow_extra_args(false);
  command->add_option("--max-tokens", o->max_tokens, "The most tokens of an answer")->check(CLI::Range(1, 1 << 24));
  command->add_option("--temperature", o->sampling.temperature, "0: always the likeliest token");
  command->add_option("--top-k", o->sampling.top_k, "Draw among the likeliest so many; 0: all");
  command->add_option("--top-p", o->sampling.top_p, "Draw among the fewest likeliest that have this probability");
  command->add_option("--min-p", o->sampling.min_p, "Draw among those with this share of the likeliest's probability");
  command->add_option("--presence-penalty", o->sampling.presence_penalty,
                      "Off the logits of tokens that the answer has");
  command->add_option("--frequency-penalty", o->sampling.frequency_penalty, "Likewise, for each time it has them");
  command->add_option("--repetition-penalty", o->sampling.repetition_penalty,
                      "Divides positive logits of tokens of prompt and answer; 1: none");
  command->add_option("--seed", o->sampling.seed, "Of what is drawn")->check(no_seed);
  command->add_option("--samples", o->samples, "Answers to each prompt")->check(CLI::Range(1, 1 << 20));
  command->add_option("--stop", o->stop, "A text that ends an answer; several may be given")->allow_extra_args(false);
  command->add_flag("--chat", o->chat, "A prompt is what a user says: the model's own chat template is put around it");
  command->add_flag("--ignore-eos", o->ignore_eos, "No end of text ends an answer");
  command->add_option("--batch", o->batch, "Answers that are worked on at once")->check(CLI::Range(1, 1 << 16));
  command->add_flag("--verify", o->verify,
                    "Compare with training's forward pass, bit by bit; exit 1 where they differ");
  command->add_option("--tokenizer", o->tokenizer,
                      "A tokenizer.json, a .model, \"bytes\", or \"none\": ids alone; else the model's own");
  add_averages(*command, o->averages);
  command->add_option("--threads", o->threads, "Threads of the CPU")->check(CLI::Range(1, 4096));
  add_latent_memory(*command, o->latent_room);
  command->add_option("--set", o->overrides, "A key of the run's configuration, as for train")->allow_extra_args(false);
  command
      ->add_option(
          "--layout", o->layout,
          "Divide the model among ranks, by the run's [plugins] tables (run) or those of a configuration file: "
          "threads of this process, or the processes of mpirun, srun or torchrun")
      ->check(not_empty)
      ->type_name("run|FILE");
  command->add_flag("--processes", *processes,
                    "The ranks of --layout are processes of this machine, each with a GPU of its own if it has one");
  command->add_flag("--log-probabilities", o->log_probabilities, "Of each token, by the model")
      ->needs(command->add_flag("--json", *json, "Print a JSON line an answer"));
  command->callback([o, json, processes, &exit_code] {
    if (o->prompts.empty() && o->files.empty()) {
      throw CLI::RequiredError("--prompt or --prompts");
    }
    if (const std::optional<int> code = arrange_ranks(*o, *processes)) {
      exit_code = *code;
      return;
    }
    const bool one = o->prompts.size() == 1 && o->files.empty() && o->samples == 1;
    // finish_output() is content with a reader who had seen enough; nothing more is generated for him.
    const auto written = [] {
      finish_output();
      return std::ferror(stdout) == 0;
    };
    const auto piece = [&](AnswerPlace, const std::string& text) {
      if (one && !*json) {
        put("{}", text);
        return written();  // as it comes
      }
      return true;
    };
    const auto done = [&](const GeneratedText& text) {
      if (*json) {
        print_line(text, o->log_probabilities);
      } else if (one) {
        put("\n");
      } else {
        put("--- prompt {}, answer {}\n{}{}{}\n", text.place.prompt + 1, text.place.sample + 1, text.prompt,
            text.goes_on ? "" : "\n", text.text);
      }
      return written();
    };
    const Generated generated = generate(*o, keys_of_plugin, kinds_of_plugin, piece, done);
    if (!o->run_ranks || speaks_for_ranks()) {
      print_end(*o, generated);
    }
    exit_code = static_cast<int>(o->verify && !generated.verification.equal() ? ExitCode::failure : ExitCode::ok);
  });
}

}  // namespace orthant
