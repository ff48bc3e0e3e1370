// orthant serve RUN|DIR: a model behind HTTP, by the interfaces of OpenAI's completions and chats.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <thread>

#include "apps/lm/memory_arguments.h"
#include "apps/serve/serve.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant {
namespace {

void print_ready(const Served& served) {
  put("serving {} at {}/v1: up to {} tokens a prompt and its answer, tokenizer {}; {}; {}\n", served.model,
      served.address, served.context, served.tokenizer, served.texts,
      served.chat.empty() ? "no chat" : "chat by " + served.chat);
  finish_output();  // whoever waits for it reads it now
}

}  // namespace

void add_serve_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("serve");
  add_examples(*command, "  orthant serve runs/quickstart --port 8000");
  auto o = std::make_shared<ServeOptions>();
  o->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  command->add_option("RUN", o->model, "A run's or a checkpoint's folder, or a published model's")
      ->required()
      ->check(not_empty);
  command->add_option("--host", o->host, "An address of this machine; beyond loopback a token is needed");
  command->add_option("--port", o->port, "0: a free one, which is printed")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  command->add_option("--batch", o->batch, "Answers that are worked on at once; others wait")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--context,--max-tokens", o->max_tokens, "The most tokens of a prompt and its answer")
      ->check(CLI::Range(2, 1 << 24));
  CLI::Option* token =
      command->add_option("--token", o->token, "What clients must show; others see it in `ps`")->check(not_empty);
  command->add_option("--token-file", o->token_file, "A file whose first line is the token")
      ->check(not_empty)
      ->excludes(token);
  command->add_option("--model-name", o->name, "What clients call the model; without it the folder's name");
  command->add_option("--tokenizer", o->tokenizer, "A tokenizer.json, a .model or \"bytes\"; else the model's own");
  add_averages(*command, o->averages);
  command->add_option("--threads", o->threads, "Threads of the CPU")->check(CLI::Range(1, 4096));
  add_latent_memory(*command, o->latent_room);
  add_prefix_memory(*command, o->prefix_room);
  command->add_option("--set", o->overrides, "A key of the run's configuration, as for train")->allow_extra_args(false);
  command->callback([o, &exit_code] {
    serve(*o, keys_of_plugin, kinds_of_plugin, print_ready);
    put("ended\n");
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
