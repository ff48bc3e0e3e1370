// generate: answers to prompts, for the command `orthant generate`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "apps/lm/generator.h"
#include "core/config/config.h"

namespace orthant {

// Calls body with the communicator of each of the ranks that are this process's, and returns when it has returned.
using RunRanks = std::function<void(const Config& config, int ranks, const std::function<void(Communicator&)>& body)>;

struct GenerateOptions {
  std::filesystem::path model;       // a run's folder, a checkpoint's, or a published model's
  bool averages = false;             // the averages of the weights in their place (optimizer.ema_decay)
  std::vector<std::string> prompts;  // texts
  std::vector<std::string> files;    // JSON lines: {"prompt": T}, or {"ids": [I, ...]}
  std::string tokenizer;             // a file, "bytes" or "none" (ids alone); empty: the model's own
  std::int64_t max_tokens = 128;
  Sampling sampling;
  std::int64_t samples = 1;       // answers to each prompt
  std::vector<std::string> stop;  // texts that end an answer
  bool ignore_eos = false;        // no end of text ends an answer
  bool chat = false;              // a text is what a user says, by the model's own chat template
  std::int64_t batch = 32;        // answers that are worked on at once
  bool log_probabilities = false;
  bool verify = false;                             // compare with training's forward pass
  int threads = 1;                                 // of the CPU
  std::int64_t latent_room = default_latent_room;  // EngineOptions'
  std::vector<std::string> overrides;              // of the run's configuration
  std::string layout;                              // as layout_of; empty: one rank
  RunRanks run_ranks;                              // of a layout; empty: they are threads of this process
};

// Where an answer belongs: to which prompt, counted through prompts and then files, and which of its samples it is.
struct AnswerPlace {
  std::size_t prompt = 0, sample = 0;
};

struct GeneratedText {
  AnswerPlace place;
  std::string prompt, text;         // prompt: empty where it was given as ids
  std::vector<ScoredToken> tokens;  // a stop token that ended it is the last one
  Finish finish = Finish::length;
  bool goes_on = true;  // from the prompt; false: the prompt is a source that it answers
};

// Log-probabilities, and a token's choices of experts in one layer, that have the bits of training's forward pass.
struct Verification {
  std::int64_t tokens = 0, equal_tokens = 0, choices = 0, equal_choices = 0;
  double largest_difference = 0;  // of log-probabilities
  bool equal() const { return tokens == equal_tokens && choices == equal_choices; }
};

struct Generated {
  std::string tokenizer;  // as it was found
  std::int64_t prompt_tokens = 0, tokens = 0;
  double seconds = 0;  // without loading
  int ranks = 1;
  bool drops_capacity = false;  // the configuration has a capacity, and generation works without it
  Verification verification;
};

// piece: text of an answer as soon as it is certain; may be empty. done: once an answer is complete. Both may throw;
// false from either ends everything: nobody reads on.
// Errors: ConfigError for prompts that are missing or malformed (file:line), a tokenizer whose ids the model has not,
// settings out of their bounds; those of OpenedModel, Engine, layout_of and generation_ranks. Rank 0 of a layout calls
// piece and done; threads of one process share `threads`.
Generated generate(const GenerateOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds,
                   const std::function<bool(AnswerPlace, const std::string&)>& piece,
                   const std::function<bool(const GeneratedText&)>& done);

}  // namespace orthant
