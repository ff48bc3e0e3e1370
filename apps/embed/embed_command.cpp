// orthant embed RUN --texts FILE: a vector for each text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "apps/embed/embed.h"
#include "core/base/output.h"
#include "core/checkpoint/safetensors.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant {
namespace {

void print_lines(const Embeddings& made, const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto begin = made.values.begin() + static_cast<std::ptrdiff_t>(i) * made.width;
    const nlohmann::ordered_json line = {{"text", texts[i]},
                                         {"embedding", std::vector<float>(begin, begin + made.width)}};
    put("{}\n", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
}

void write_file(const Embeddings& made, const std::string& file) {
  const std::int64_t rows = static_cast<std::int64_t>(made.values.size()) / made.width;
  write_safetensors(file, {{.name = "embedding", .sizes = {rows, made.width}}},
                    {std::as_bytes(std::span(made.values))});
}

}  // namespace

void add_embed_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("embed");
  add_examples(*command, "  orthant embed runs/bert --texts lines.txt --pool mean");
  auto o = std::make_shared<EmbedOptions>();
  auto file = std::make_shared<std::string>(), key = std::make_shared<std::string>("text"),
       pool = std::make_shared<std::string>("mean"), out = std::make_shared<std::string>();
  o->threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  command->add_option("RUN", o->model, "A run's or a checkpoint's folder, of an encoder")->required()->check(not_empty);
  command->add_option("--texts", *file, "A file with a text on each line; of JSON lines (.jsonl, .json) that of a key")
      ->required()
      ->check(not_empty);
  command->add_option("--text-key", *key, "Whose value that is")->check(not_empty)->capture_default_str();
  command->add_option("--pool", *pool, "The mean over a text's tokens, or its first one")
      ->check(CLI::IsMember({"mean", "cls"}))
      ->capture_default_str();
  command->add_option("-o,--output", *out, "A safetensors file with 'embedding' [texts, d]; without it JSON lines")
      ->check(not_empty);
  command->add_option("--tokenizer", o->tokenizer, "A tokenizer.json, a .model or \"bytes\"; else the model's own");
  command->add_option("--threads", o->threads, "Threads of the CPU")->check(CLI::Range(1, 4096));
  command->add_option("--set", o->overrides, "A key of the run's configuration, as for train")->allow_extra_args(false);
  command->callback([o, file, key, pool, out, &exit_code] {
    o->texts = read_texts(*file, *key);
    o->of = *pool == "mean" ? EmbeddingOf::mean : EmbeddingOf::cls;
    const Embeddings made = embed(*o, keys_of_plugin, kinds_of_plugin);
    if (made.cut > 0) {
      say("orthant: note: {} of {} texts are longer than a sequence, and were cut", made.cut, o->texts.size());
    }
    out->empty() ? print_lines(made, o->texts) : write_file(made, *out);
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
