#include "apps/embed/embed.h"

#include <algorithm>
#include <span>

#include "apps/pretrained/model_tokenizer.h"
#include "apps/pretrained/one_rank_model.h"
#include "apps/pretrained/opened_model.h"
#include "core/arch/links.h"
#include "core/base/json.h"
#include "core/data/batch_builder.h"
#include "core/data/lines.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

// The link behind the states: everything before it is the encoder.
int states_of(const Settings& s) {
  const std::vector<Link> links = links_of(s);
  const auto found =
      std::find_if(links.begin(), links.end(), [](const Link& link) { return link.name == "transform"; });
  if (found == links.end()) {
    throw SettingError("model.kind", fmt::format("[model] kind: embed knows encoders (\"bert\") alone, and this model "
                                                 "is \"{}\"",
                                                 s.model.kind));
  }
  return found->number;
}

// What stands around a text, as the sources of plugins/encoder have it.
class TextFrame {
 public:
  TextFrame(const Settings& s, std::int64_t vocabulary) {
    const KeyValues& data = kind_values(s, "data");
    const auto id = [&](const char* key, std::int64_t behind) {
      const std::int64_t written = std::get<std::int64_t>(data.at(key));
      return static_cast<std::int32_t>(written < 0 ? vocabulary + behind : written);
    };
    around_ = std::get<bool>(data.at("frame"));
    first_ = id("first_id", 1);
    last_ = id("last_id", 2);
  }
  // ids: cut where they do not fit; true then.
  bool put(std::vector<std::int32_t>& ids, std::int64_t positions) const {
    const std::size_t room = static_cast<std::size_t>(std::max<std::int64_t>(positions - (around_ ? 2 : 0), 0));
    const bool cut = ids.size() > room;
    ids.resize(std::min(ids.size(), room));
    if (around_) {
      ids.insert(ids.begin(), first_);
      ids.push_back(last_);
    }
    return cut;
  }

 private:
  bool around_ = true;
  std::int32_t first_ = 0, last_ = 0;
};

// Of one sequence's states [positions, width]: the first `tokens` of them.
void pool(std::span<const float> states, std::size_t tokens, EmbeddingOf of, std::span<float> to) {
  if (of == EmbeddingOf::cls) {
    std::copy_n(states.begin(), to.size(), to.begin());
    return;
  }
  for (std::size_t c = 0; c < to.size(); ++c) {
    double sum = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
      sum += static_cast<double>(states[t * to.size() + c]);
    }
    to[c] = static_cast<float>(sum / static_cast<double>(tokens));
  }
}

HostBatch batch_of(std::span<const std::vector<std::int32_t>> texts, std::int64_t sequences, const Settings& s) {
  const std::vector<Space> spaces = spaces_of(s);
  HostBatch batch = padding_batch(0, sequences, spaces);
  const std::size_t types = static_cast<std::size_t>(spaces.front().columns);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    SequenceDocument document{.token = texts[i], .label = std::vector<std::int32_t>(texts[i].size(), -1)};
    document.value.assign(texts[i].size() * types, 0);
    for (std::size_t t = 0; types > 0 && t < texts[i].size(); ++t) {
      document.value[t * types] = 1;  // every token has the first type
    }
    put_document(batch, static_cast<std::int64_t>(i), 0, document);
  }
  return batch;
}

}  // namespace

std::vector<std::string> read_texts(const std::string& file, const std::string& key) {
  const bool rows = file.ends_with(".jsonl") || file.ends_with(".json");
  std::vector<std::string> texts;
  for_each_line(file, [&](std::string_view line, const std::string& where) {
    texts.push_back(rows ? text_at(parse_json(std::as_bytes(std::span(line)), where), key.c_str(), where)
                         : std::string(line));
  });
  if (texts.empty()) {
    throw ConfigError(fmt::format("'{}' has no text", file));
  }
  return texts;
}

Embeddings embed(const EmbedOptions& options, const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  const OpenedModel model(options.model, "embed", options.overrides, plugin_keys, plugin_kinds);
  const Settings& s = model.config().settings;
  const int states = states_of(s);
  const std::string bytes = s.data.tokenizer == "bytes" ? "bytes" : "";  // with ids of its own behind them
  const std::shared_ptr<const Tokenizer> tokenizer =
      tokenizer_of(model, options.tokenizer.empty() ? bytes : options.tokenizer);
  const TextFrame frame(s, tokenizer->vocabulary());
  Embeddings made{.width = s.model.d_model, .values = {}};
  std::vector<std::vector<std::int32_t>> texts;
  for (const std::string& text : options.texts) {
    texts.push_back(tokenizer->encode(text));
    made.cut += frame.put(texts.back(), s.data.sequence_length) ? 1 : 0;
    if (texts.back().empty()) {
      throw ConfigError(fmt::format("text {} is empty", texts.size()));
    }
  }
  const std::size_t width = static_cast<std::size_t>(made.width);
  made.values.resize(texts.size() * width);
  const std::int64_t positions = s.data.sequence_length;
  run_threads(1, [&](Communicator& communicator) {
    OneRankModel on_rank(model.config(), model.reader(), 0, options.threads, communicator);
    const std::size_t at_once = static_cast<std::size_t>(std::max<std::int64_t>(1, 4096 / positions));
    for (std::size_t first = 0; first < texts.size(); first += at_once) {
      const std::size_t count = std::min(at_once, texts.size() - first);
      StepSums sums;
      const Tensor x = on_rank.forward(
          batch_of(std::span(texts).subspan(first, count), static_cast<std::int64_t>(at_once), s), states, sums);
      const Tensor wide = on_rank.device().empty(DType::f32, x.shape());
      on_rank.stream().cast(wide, x);
      std::vector<float> host(static_cast<std::size_t>(x.elements()));
      on_rank.stream().download(host.data(), wide);
      for (std::size_t i = 0; i < count; ++i) {
        pool(std::span(host).subspan(i * static_cast<std::size_t>(positions) * width), texts[first + i].size(),
             options.of, std::span(made.values).subspan((first + i) * width, width));
      }
    }
  });
  return made;
}

}  // namespace orthant
