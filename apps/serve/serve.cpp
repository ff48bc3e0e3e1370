#include "apps/serve/serve.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "apps/lm/engine.h"
#include "apps/lm/generator.h"
#include "apps/pretrained/model_tokenizer.h"
#include "apps/pretrained/opened_model.h"
#include "apps/serve/api.h"
#include "apps/serve/http_server.h"
#include "apps/serve/model_loop.h"
#include "apps/serve/signal_watch.h"
#include "core/base/output.h"
#include "core/tokenizer/model_template.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t waiting_answers = 512;
constexpr auto grace_of_answers = 5s, grace_of_streams = 2s, grace_of_connections = 2s;

// glibc gives threads memory of their own, and hardly gives it back: with a thread for each connection the process
// would grow for as long as new ones come to more.
void share_memory_among_threads() {
#if defined(__GLIBC__)
  mallopt(M_ARENA_MAX, 2);
#endif
}

// As ssh does it with keys. A group that was given the right to read has it.
void require_private(const std::filesystem::path& file) {
  using std::filesystem::perms;
  std::error_code unreadable;  // told where it is read
  const perms others =
      std::filesystem::status(file, unreadable).permissions() & (perms::others_all | perms::group_write);
  if (!unreadable && others != perms::none) {
    throw ConfigError(fmt::format(
        "the token's file '{}' has the mode {:04o}: anybody on this machine can read or change it. chmod 600 '{}' (in "
        "Kubernetes: defaultMode: 0400 of the secret's volume)",
        file.string(), static_cast<unsigned>(std::filesystem::status(file).permissions()), file.string()));
  }
}

std::string token_of(const ServeOptions& options) {
  std::string token = options.token;
  if (!options.token_file.empty()) {
    require_private(options.token_file);
    std::ifstream file(options.token_file);
    if (!std::getline(file, token)) {
      throw ConfigError(fmt::format("the token's file '{}' cannot be read, or is empty", options.token_file.string()));
    }
    token.erase(token.find_last_not_of(" \t\r") + 1);
  }
  const bool wanted = !options.token.empty() || !options.token_file.empty();
  const bool words = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (wanted && (token.empty() || !words)) {
    throw ConfigError("a token is one word of printable ASCII: what an Authorization header can carry");
  }
  if (token.empty() && !HttpServer::is_loopback(options.host)) {
    throw ConfigError(fmt::format(
        "'{}' may be reached from other machines, and anybody there could use this model: give a token that clients "
        "must show (--token-file FILE), or serve this machine alone (--host 127.0.0.1)",
        options.host));
  }
  return token;
}

std::string name_of(const ServeOptions& options) {
  if (!options.name.empty()) {
    return options.name;
  }
  const std::filesystem::path folder = std::filesystem::weakly_canonical(options.model / ".").lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

std::int64_t context_of(const ServeOptions& options, const OpenedModel& model, const Engine& engine) {
  const std::int64_t made_for = model.known_positions();
  const std::int64_t asked = options.max_tokens > 0 ? options.max_tokens : std::max(default_context, made_for);
  if (options.max_tokens > 0 && engine.longest() > 0 && asked > engine.longest()) {
    throw ConfigError(fmt::format("--context {}: this model has learned positions for {}", asked, engine.longest()));
  }
  const std::int64_t context = engine.longest() > 0 ? std::min(asked, engine.longest()) : asked;
  if (context > made_for) {
    say("orthant: note: up to {} tokens a prompt and its answer, and the model was made for {}: answers beyond these "
        "may be worse (--context {} leaves them out)",
        context, made_for, made_for);
  }
  return context;
}

// Null where the model has none that can be read: completions go on without. why: what is said to who asks for a chat.
std::shared_ptr<const ModelTemplate> chat_of(const OpenedModel& model, const Tokenizer& tokenizer, std::string& why) {
  try {
    why =
        "this model has no chat template: put a chat_template.jinja beside its tokenizer, or ask /v1/completions "
        "with a prompt";
    return ModelTemplate::of(model.text_rules(), tokenizer);
  } catch (const ConfigError& error) {
    why = fmt::format("this model's chat template cannot be used here: {}; ask /v1/completions with a prompt",
                      error.what());
    say("orthant: warning: no chat: {}", error.what());
    return nullptr;
  }
}

std::string address_of(const std::string& host, int port) {
  return fmt::format("http://{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]", port);
}

}  // namespace

void serve(const ServeOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds,
           const std::function<void(const Served&)>& ready) {
  const std::string token = token_of(options);
  share_memory_among_threads();
  SignalWatch signals;
  const OpenedModel model(options.model, "serve", options.overrides, plugin_keys, plugin_kinds, options.averages);
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_of(model, options.tokenizer);
  run_threads(1, [&](Communicator& communicator) {
    Engine engine(model, {.threads = options.threads, .latent_room = options.latent_room}, communicator);
    const std::size_t batch = static_cast<std::size_t>(options.batch);
    Generator generator(engine, tokenizer.get(), batch, options.prefix_room);
    ModelLoop loop(generator, batch, waiting_answers);
    CompletionLimits limits{.model = name_of(options),
                            .vocabulary = std::min(engine.vocabulary(), tokenizer->vocabulary()),
                            .rules = model.text_rules(),
                            .ends = answer_ends(tokenizer.get(), model.text_rules(), engine.vocabulary()),
                            .context = context_of(options, model, engine)};
    const std::shared_ptr<const ModelTemplate> chat = chat_of(model, *tokenizer, limits.no_chat);
    limits.chat = chat.get();
    Api api(loop, *tokenizer, limits, token);
    std::atomic<bool> lost = false;
    HttpServer http(api, [&] {
      lost = true;
      loop.end(grace_of_answers);
    });
    const int port = http.start(options.host, options.port);
    // Gone before the loop, whatever throws.
    const SignalWatch::Stop stop(signals, [&] { loop.end(grace_of_answers); });
    ready({limits.model, tokenizer->name(), address_of(options.host, port), limits.context,
           described(limits.rules, *tokenizer), chat != nullptr ? chat->where() : ""});
    loop.run();
    // Clients read what they have been answered.
    const auto deadline = std::chrono::steady_clock::now() + grace_of_streams;
    while (api.open() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(10ms);
    }
    http.stop(grace_of_connections);
    require(!lost, "nothing can be accepted on {} any more: its socket was closed or broke. Start the server again",
            address_of(options.host, port));
  });
}

}  // namespace orthant
