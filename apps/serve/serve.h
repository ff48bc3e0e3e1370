// serve: a model behind HTTP until a signal ends it, for the command `orthant serve`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "apps/lm/engine.h"
#include "core/config/config.h"

namespace orthant {

constexpr std::int64_t default_prefix_room = std::int64_t{1} << 30;

struct ServeOptions {
  std::filesystem::path model;  // a run's folder, a checkpoint's, or a published model's
  bool averages = false;        // the averages of the weights in their place (optimizer.ema_decay)
  std::string name;             // that clients give; empty: the folder's
  std::string tokenizer;        // a file or "bytes"; empty: the model's own, or bytes where it has none
  std::string host = "127.0.0.1";
  int port = 8000;                                 // 0: a free one
  std::int64_t batch = 16;                         // answers that are worked on at once
  std::int64_t max_tokens = 0;                     // of a prompt and its answer; 0: see default_context
  std::string token;                               // that clients must show; empty: none
  std::filesystem::path token_file;                // which holds it
  int threads = 1;                                 // of the CPU
  std::int64_t latent_room = default_latent_room;  // EngineOptions'
  std::int64_t prefix_room = default_prefix_room;  // bytes of PrefixCache's pages
  std::vector<std::string> overrides;              // of the run's configuration
};

// What clients can use it by.
struct Served {
  std::string model, tokenizer, address;  // its name; as it was found; http://HOST:PORT
  std::int64_t context = 0;               // tokens of a prompt and its answer
  std::string texts;                      // how they begin and end
  std::string chat;                       // where its chat template stands; empty: there is none
};

// A prompt and its answer have as many tokens where nobody says how many; more where training's sequences have. A line
// says so where these are more than the model was made for.
constexpr std::int64_t default_context = 4096;

// Returns after SIGINT or SIGTERM (stop_signals.h), when answers under way have ended or have been refused; a second
// one ends the process at once, and so does one while the model is loaded. ready: clients can connect. REQUIRES: the
// process has no other thread yet. Errors: ConfigError for a host beyond this machine without a token, a token that
// cannot be one; those of OpenedModel, Engine, tokenizer_of and HttpServer::start; Error where its socket is lost.
void serve(const ServeOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds,
           const std::function<void(const Served&)>& ready);

}  // namespace orthant
