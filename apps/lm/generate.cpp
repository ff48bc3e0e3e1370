#include "apps/lm/generate.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "apps/lm/prompt.h"
#include "apps/pretrained/model_tokenizer.h"
#include "core/base/json.h"
#include "core/data/lines.h"
#include "core/run/file_work.h"
#include "core/tokenizer/model_template.h"
#include "parallel/local/segment.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
};

// null: ids alone.
class Prompts {
 public:
  // chat: texts are what a user says. Errors: ConfigError where the model has no template for that, or one that cannot
  // be read.
  Prompts(const Tokenizer* tokenizer, const TextRules& rules, bool chat) : tokenizer_(tokenizer), rules_(rules) {
    if (chat && tokenizer != nullptr) {
      chat_ = ModelTemplate::of(rules, *tokenizer);
      if (chat_ == nullptr) {
        throw ConfigError("--chat: this model has no chat template: put a chat_template.jinja beside its tokenizer");
      }
    }
  }

  void add(const std::string& text) {
    if (tokenizer_ == nullptr) {
      throw ConfigError("--tokenizer none: prompts are {\"ids\": [...]} of a --prompts file");
    }
    all.push_back({.text = text, .ids = chat_ ? said_by_user(text) : prompt_ids(*tokenizer_, rules_, text)});
  }

  void read(const std::string& path) {
    const std::size_t found =
        for_each_line(path, [&](std::string_view line, const std::string& where) { add_line(line, where); });
    if (found == 0) {
      throw ConfigError(fmt::format("'{}' has no prompt: a line is {{\"prompt\": \"...\"}}", path));
    }
  }

  std::vector<Prompt> all;

 private:
  std::vector<std::int32_t> said_by_user(const std::string& text) const {
    TemplateInput input;
    input.messages.push_back({{"role", "user"}, {"content", text}});
    input.add_generation_prompt = true;
    try {
      return chat_->ids(chat_->render(input).text);
    } catch (const TemplateError& error) {
      throw ConfigError(fmt::format("--chat: {}, line {}: {}", chat_->where(), error.line(), error.what()));
    }
  }

  void add_line(std::string_view line, const std::string& where) {
    const Json json = parse_json(std::as_bytes(std::span(line)), where);
    require(json.is_object(), "{}: expected an object, {{\"prompt\": \"...\"}}", where);
    require(json.size() == 1 && (json.contains("prompt") || json.contains("ids")),
            "{}: expected 'prompt' or 'ids' alone; what holds for all prompts is said by options", where);
    if (!json.contains("ids")) {
      add(text_at(json, "prompt", where));
      return;
    }
    Prompt prompt;
    require(json["ids"].is_array() && !json["ids"].empty(), "{}: 'ids' must be a list of at least one token", where);
    for (const Json& id : json["ids"]) {
      require(id.is_number_integer() && id >= 0 && id <= std::numeric_limits<std::int32_t>::max(),
              "{}: 'ids' must hold ids of tokens, not {}", where, id.dump());
      prompt.ids.push_back(id.get<std::int32_t>());
    }
    all.push_back(std::move(prompt));
  }

  const Tokenizer* tokenizer_;
  const TextRules& rules_;
  std::shared_ptr<const ModelTemplate> chat_;
};

// Compares answers with what training's forward pass makes of them.
class Verifier {
 public:
  void chose(int sequence, std::int64_t position, int routed, std::span<const std::int32_t> experts) {
    auto& of = sequence < 0 ? of_training_ : of_sequence_[sequence];
    of[{position, routed}] = {experts.begin(), experts.end()};
  }

  // sequence: as the engine had it.
  void compare(int sequence, const std::vector<std::int32_t>& prompt, const std::vector<ScoredToken>& answer,
               Engine& engine) {
    // An answer to a source goes on from the model's own first tokens.
    const std::vector<std::int32_t> before = engine.has_source() ? engine.first_tokens(prompt) : prompt;
    std::vector<std::int32_t> ids = before;
    for (const ScoredToken& token : answer) {
      ids.push_back(token.id);
    }
    ids.pop_back();  // nothing was asked behind the last
    of_training_.clear();
    const auto compared = [&](std::size_t, std::size_t at, std::span<const float> logits) {
      if (at + 1 < before.size()) {
        return;
      }
      const ScoredToken& token = answer[at + 1 - before.size()];
      const double here = static_cast<double>(engine.log_probability(logits, token.id));
      ++found.tokens;
      found.equal_tokens += here == token.log_probability ? 1 : 0;
      found.largest_difference = std::max(found.largest_difference, std::abs(here - token.log_probability));
    };
    engine.score(ids, compared, prompt);
    const auto& cached = of_sequence_[sequence];
    for (const auto& [place, experts] : of_training_) {
      const auto other = cached.find(place);
      ++found.choices;
      found.equal_choices += other != cached.end() && other->second == experts ? 1 : 0;
    }
    of_sequence_.erase(sequence);
  }

  Verification found;

 private:
  using Chosen = std::map<std::pair<std::int64_t, int>, std::vector<std::int32_t>>;  // by position and routed layer
  Chosen of_training_;
  std::map<int, Chosen> of_sequence_;
};

// What all ranks answer with.
struct Task {
  const GenerateOptions& options;
  const OpenedModel& model;
  const Tokenizer* tokenizer;  // null: ids alone
  const std::vector<Prompt>& prompts;
  const AnswerEnds ends;
  const std::vector<PluginRequest>& layout;
};

// Of rank 0, which has seen all tokens, and of each stage's routers.
Verification over_stages(Verification found, DividedModel& model) {
  const std::int64_t own = model.speaks_for_stage() ? 1 : 0;
  const auto sums = model.sum_over_ranks({own * found.choices, own * found.equal_choices});
  found.choices = sums[0];
  found.equal_choices = sums[1];
  return found;
}

// A reader may take his time: rank 0 waits for him, and the others for rank 0.
constexpr double longest_reading_seconds = 7 * 24 * 3600;

// One rank's part. All ranks take the same steps, as all of them are told the same logits; those that are asked for
// nothing have no piece and no done.
Generated answer_on(Communicator& communicator, const Task& task,
                    const std::function<bool(AnswerPlace, const std::string&)>& piece,
                    const std::function<bool(const GeneratedText&)>& done) {
  const GenerateOptions& o = task.options;
  const RunSettings& run = task.model.config().settings.run;
  Generated generated;
  Verifier verifier;
  const int sharing = o.run_ranks ? 1 : communicator.size();
  EngineOptions options{
      .threads = std::max(1, o.threads / sharing), .latent_room = o.latent_room / sharing, .layout = task.layout};
  if (o.verify) {
    options.chose = [&](int sequence, std::int64_t position, int routed, std::span<const std::int32_t> experts) {
      verifier.chose(sequence, position, routed, experts);
    };
  }
  std::optional<FileWork> loading(std::in_place, communicator, run.disk_timeout_seconds);
  Engine engine(task.model, options, communicator);
  loading.reset();
  Generator generator(engine, task.tokenizer, static_cast<std::size_t>(o.batch));
  const auto while_others_wait = [&](const auto& tell) {
    std::optional<FileWork> alive;
    if (communicator.size() > 1) {
      alive.emplace(communicator, longest_reading_seconds);
    }
    return tell();
  };
  std::vector<GeneratedText> complete;  // since the last step
  bool wanted = true;
  int sequence = 0;
  for (std::size_t p = 0; p < task.prompts.size(); ++p) {
    const Prompt& prompt = task.prompts[p];
    for (std::int64_t sample = 0; sample < o.samples; ++sample) {
      auto text = std::make_shared<GeneratedText>();
      text->place = {p, static_cast<std::size_t>(sample)};
      text->prompt = prompt.text;
      text->goes_on = !engine.has_source();
      Request request{.prompt = prompt.ids,
                      .max_tokens = o.max_tokens,
                      .sampling = o.sampling,
                      .answer = static_cast<std::uint64_t>(sequence++),
                      .stop_ids = {},
                      .stop = o.stop,
                      .ends = !o.ignore_eos,
                      .log_probabilities = o.log_probabilities || o.verify};
      if (!o.ignore_eos) {
        request.stop_ids = task.ends.ids;
        request.stop.insert(request.stop.end(), task.ends.texts.begin(), task.ends.texts.end());
      }
      request.on_token = [&, text](const TokenEvent& event) {
        if (!event.of_prompt) {
          text->tokens.push_back(event.token);
        }
        text->text += event.text;
        if (piece && !event.text.empty()) {
          wanted = while_others_wait([&] { return piece(text->place, event.text); }) && wanted;
        }
        if (event.finish.has_value()) {
          text->finish = *event.finish;
          complete.push_back(*text);
        }
        return true;
      };
      generated.prompt_tokens += static_cast<std::int64_t>(prompt.ids.size());
      generator.add(std::move(request));
    }
  }
  bool more = true;
  while (more && wanted) {
    const auto begin = std::chrono::steady_clock::now();
    more = generator.step();
    generated.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (const GeneratedText& text : complete) {
      generated.tokens += static_cast<std::int64_t>(text.tokens.size());
      if (o.verify && !text.tokens.empty()) {
        // The generator numbers its sequences in the order in which requests were added.
        const std::size_t number = text.place.prompt * static_cast<std::size_t>(o.samples) + text.place.sample;
        verifier.compare(static_cast<int>(number), task.prompts[text.place.prompt].ids, text.tokens, engine);
      }
      if (done) {
        wanted = while_others_wait([&] { return done(text); }) && wanted;
      }
    }
    complete.clear();
    wanted = engine.model().first_says(wanted);  // only rank 0 knows whether somebody reads on
  }
  generated.verification = over_stages(verifier.found, engine.model());
  return generated;
}

}  // namespace

Generated generate(const GenerateOptions& o, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds,
                   const std::function<bool(AnswerPlace, const std::string&)>& piece,
                   const std::function<bool(const GeneratedText&)>& done) {
  if (o.prompts.empty() && o.files.empty()) {
    throw ConfigError("there is nothing to go on from: give --prompt TEXT, or --prompts FILE.jsonl");
  }
  check_sampling(o.sampling);
  const OpenedModel model(o.model, "generate", o.overrides, plugin_keys, plugin_kinds, o.averages);
  std::vector<PluginRequest> layout;
  int ranks = 1;
  if (!o.layout.empty()) {
    layout = layout_of(o.layout, model.config(), plugin_keys, plugin_kinds);
    ranks = generation_ranks(for_generation(model.config(), layout));
    if (!o.run_ranks && ranks > LocalSegment::max_world) {
      throw ConfigError(
          fmt::format("the layout has {} ranks; as threads of this process there are at most {}: make "
                      "the layout smaller",
                      ranks, LocalSegment::max_world));
    }
  }
  const std::shared_ptr<const Tokenizer> tokenizer = o.tokenizer == "none" ? nullptr : tokenizer_of(model, o.tokenizer);
  Prompts read(tokenizer.get(), model.text_rules(), o.chat);
  for (const std::string& text : o.prompts) {
    read.add(text);
  }
  for (const std::string& file : o.files) {
    read.read(file);
  }
  const Task task{
      .options = o,
      .model = model,
      .tokenizer = tokenizer.get(),
      .prompts = read.all,
      .ends = o.ignore_eos ? AnswerEnds()
                           : answer_ends(tokenizer.get(), model.text_rules(), model.config().settings.model.vocab_size),
      .layout = layout};
  Generated generated;
  const auto body = [&](Communicator& communicator) {
    if (communicator.rank() == 0) {
      generated = answer_on(communicator, task, piece, done);
    } else {
      answer_on(communicator, task, {}, {});
    }
  };
  if (!o.layout.empty() && o.run_ranks) {
    o.run_ranks(model.config(), ranks, body);
  } else {
    run_threads(ranks, body, {.timeout_seconds = model.config().settings.run.timeout_seconds, .segment = {}});
  }
  generated.tokenizer = tokenizer == nullptr ? "none" : tokenizer->name();
  generated.ranks = ranks;
  const MoeSettings& moe = model.config().settings.moe;
  generated.drops_capacity = moe.experts > 0 && moe.capacity_factor > 0;
  return generated;
}

}  // namespace orthant
