#include "apps/route/specialisation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/pretrained/one_rank_model.h"
#include "apps/pretrained/opened_model.h"
#include "core/arch/decoder.h"
#include "core/checkpoint/checkpoint.h"
#include "core/data/source.h"
#include "core/run/run_tokenizer.h"
#include "core/train/micro_batches.h"
#include "parallel/local/thread_world.h"
#include "router/routing_tap.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t tokens_of_a_pass = 4096;
constexpr std::int64_t often_enough = 8;  // occurrences of a token, below which a share says little

// Keeps what the routers of one forward pass have chosen.
class ChoiceTap final : public RoutingTap {
 public:
  void decided(const StepContext&, int routed, const GateInput&, const GateChoice& made) override {
    chosen_[routed] = made.expert;
  }
  std::vector<std::int32_t> take(int routed, Stream& s) {
    const Tensor expert = chosen_.at(routed);
    std::vector<std::int32_t> host(static_cast<std::size_t>(expert.elements()));
    s.download(host.data(), expert);
    s.synchronize();
    return host;
  }

 private:
  std::map<int, Tensor> chosen_;  // i32 [T, K]
};

// Of one layer: experts of all tokens of all sets, in order, K each; -1 for none.
using Choices = std::vector<std::int32_t>;

// The tokens that are measured.
struct Tokens {
  std::vector<std::string> sets;
  std::vector<HostBatch> batches;
  std::vector<std::size_t> set_of_batch;
};

Tokens tokens_of(const BatchSource& source, const Settings& settings) {
  const std::int64_t positions = settings.data.sequence_length;
  const std::int64_t group = settings.moe.group_tokens.written();
  const std::int64_t a_group = std::max<std::int64_t>(1, group / positions);
  const std::int64_t at_once =
      (std::max<std::int64_t>(1, tokens_of_a_pass / positions) + a_group - 1) / a_group * a_group;
  Tokens tokens;
  const auto add = [&](const std::string& name, const HeldOut& set) {
    const std::int64_t all = set.validation_sequences();
    if (all == 0) {
      return;
    }
    tokens.sets.push_back(name);
    for (std::int64_t first = 0; first < all; first += at_once) {
      tokens.batches.push_back(set.validation(first, std::min(at_once, all - first)));
      pad_to(tokens.batches.back(), at_once, spaces_of(settings));
      tokens.set_of_batch.push_back(tokens.sets.size() - 1);
    }
  };
  add("held out", source);
  for (const NamedSet& set : source.sets()) {
    add(set.name, *set.sequences);
  }
  return tokens;
}

std::vector<Choices> choices_of(const fs::path& checkpoint, const Tokens& tokens, std::size_t routed, int threads,
                                const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds) {
  const OpenedModel opened(checkpoint, "route", {}, plugin_keys, plugin_kinds);
  require_decoder(opened.config().settings, "route");
  std::vector<Choices> layers(routed);
  run_threads(1, [&](Communicator& communicator) {
    OneRankModel model(opened.config(), opened.reader(), 0, threads, communicator);
    for (const HostBatch& batch : tokens.batches) {
      ChoiceTap tap;
      StepSums sums;
      sums.tap = &tap;
      model.forward(batch, model.head(), sums);
      for (std::size_t layer = 0; layer < routed; ++layer) {
        const std::vector<std::int32_t> chosen = tap.take(static_cast<int>(layer), model.stream());
        layers[layer].insert(layers[layer].end(), chosen.begin(), chosen.end());
      }
    }
  });
  return layers;
}

// Calls fn(set, token id, its K choices) for every token that is not padding.
template <class F>
void for_tokens(const Tokens& tokens, const Choices& choices, F&& fn) {
  std::size_t all = 0, at = 0;
  for (const HostBatch& batch : tokens.batches) {
    all += batch.token.size();
  }
  const std::size_t k_count = all == 0 ? 0 : choices.size() / all;
  for (std::size_t b = 0; b < tokens.batches.size(); ++b) {
    const HostBatch& batch = tokens.batches[b];
    for (std::size_t t = 0; t < batch.token.size(); ++t, ++at) {
      if (batch.valid[t] != 0) {
        fn(tokens.set_of_batch[b], batch.token[t], std::span(choices).subspan(at * k_count, k_count));
      }
    }
  }
}

// The mean share of a token's choices in `last` that it had in `before` too. A token without any counts for nothing.
double overlap(const Tokens& tokens, const Choices& before, const Choices& last) {
  double sum = 0, counted = 0;
  std::vector<std::span<const std::int32_t>> then;
  for_tokens(tokens, before, [&](std::size_t, std::int32_t, std::span<const std::int32_t> of) { then.push_back(of); });
  std::size_t at = 0;
  for_tokens(tokens, last, [&](std::size_t, std::int32_t, std::span<const std::int32_t> of) {
    const std::span<const std::int32_t> was = then[at++];
    double wanted = 0, same = 0;
    for (const std::int32_t e : of) {
      wanted += e >= 0 ? 1 : 0;
      same += e >= 0 && std::find(was.begin(), was.end(), e) != was.end() ? 1 : 0;
    }
    sum += wanted > 0 ? same / wanted : 0;
    counted += wanted > 0 ? 1 : 0;
  });
  return counted > 0 ? sum / counted : 0;
}

std::vector<ChosenToken> first_of(std::vector<ChosenToken> all, std::size_t count, bool by_share) {
  std::sort(all.begin(), all.end(), [&](const ChosenToken& a, const ChosenToken& b) {
    const double x = by_share ? a.share : static_cast<double>(a.count);
    const double y = by_share ? b.share : static_cast<double>(b.count);
    return x != y ? x > y : a.count != b.count ? a.count > b.count : a.id < b.id;
  });
  all.resize(std::min(all.size(), count));
  return all;
}

LayerUse use_of(int block, const Tokens& tokens, const Choices& choices, std::size_t experts, std::size_t listed) {
  std::map<std::int32_t, std::int64_t> occurrences;
  std::vector<std::map<std::int32_t, std::int64_t>> counts(experts);
  std::vector<std::vector<std::int64_t>> by_set(experts, std::vector<std::int64_t>(tokens.sets.size(), 0));
  std::vector<std::int64_t> of_set(tokens.sets.size(), 0);
  for_tokens(tokens, choices, [&](std::size_t set, std::int32_t id, std::span<const std::int32_t> chosen) {
    ++occurrences[id];
    ++of_set[set];
    for (const std::int32_t e : chosen) {
      if (e >= 0) {
        ++counts[static_cast<std::size_t>(e)][id];
        ++by_set[static_cast<std::size_t>(e)][set];
      }
    }
  });
  LayerUse layer{block, std::vector<ExpertUse>(experts)};
  for (std::size_t e = 0; e < experts; ++e) {
    ExpertUse& use = layer.experts[e];
    std::vector<ChosenToken> all, often;
    for (const auto& [id, count] : counts[e]) {
      const std::int64_t occurs = occurrences.at(id);
      all.push_back({id, count, static_cast<double>(count) / static_cast<double>(occurs)});
      use.choices += count;
      if (occurs >= often_enough) {
        often.push_back(all.back());
      }
    }
    use.frequent = first_of(std::move(all), listed, false);
    use.specialised = first_of(std::move(often), listed, true);
    for (std::size_t set = 0; set < tokens.sets.size(); ++set) {
      use.of_sets.push_back(static_cast<double>(by_set[e][set]) /
                            static_cast<double>(std::max<std::int64_t>(of_set[set], 1)));
    }
  }
  return layer;
}

// tokenizer null: there is none, and ids below 256 of a text are bytes.
std::vector<std::string> texts_of(const Specialisation& found, const Tokenizer* tokenizer, const Settings& settings) {
  std::vector<std::string> texts(static_cast<std::size_t>(settings.model.vocab_size));
  const bool bytes = tokenizer == nullptr && settings.catalogue->get<Source>(settings.data.source).reads_files() &&
                     tokenizer_hash(settings) == 0 && settings.model.vocab_size == 256;
  for (const LayerUse& layer : found.layers) {
    for (const ExpertUse& use : layer.experts) {
      for (const auto* list : {&use.frequent, &use.specialised}) {
        for (const ChosenToken& token : *list) {
          std::string& text = texts.at(static_cast<std::size_t>(token.id));
          if (tokenizer != nullptr && token.id < tokenizer->vocabulary()) {
            text = tokenizer->decode(std::vector{token.id});
          } else if (bytes) {
            text = std::string(1, static_cast<char>(token.id));
          }
        }
      }
    }
  }
  return texts;
}

}  // namespace

Specialisation specialisation_of(const SpecialisationOptions& options, const PluginKeys& plugin_keys,
                                 const PluginKinds& plugin_kinds) {
  const fs::path file = options.run / "config.resolved.toml";
  if (!fs::exists(file)) {
    throw ConfigError(
        fmt::format("'{}' is no run: it has no config.resolved.toml; give a run's folder", options.run.string()));
  }
  const Settings settings = load_config(file.string(), {}, plugin_keys, plugin_kinds).settings;
  std::vector<int> blocks;
  const std::vector<Link> links = links_of(settings);
  for (const Link* link : routed_links(links)) {
    blocks.push_back(link->block);
  }
  std::vector<NamedCheckpoint> checkpoints = checkpoints_in(options.run / "checkpoints");  // the newest first
  std::erase_if(checkpoints, [](const NamedCheckpoint& one) { return !one.finished(); });
  if (blocks.empty() || checkpoints.empty()) {
    throw ConfigError(fmt::format("'{}' has no {}", options.run.string(),
                                  blocks.empty() ? "routed layers, so there are no experts to ask about"
                                                 : "checkpoint: its weights decide where tokens go"));
  }
  const std::unique_ptr<BatchSource> source = make_batch_source(settings);
  const Tokens tokens = tokens_of(*source, settings);
  if (tokens.batches.empty()) {
    throw ConfigError(
        fmt::format("'{}' holds nothing out: data.validation_fraction is 0, and data.validation_path "
                    "names no file",
                    options.run.string()));
  }
  const auto routed = [&](const NamedCheckpoint& checkpoint) {
    return choices_of(checkpoint.path, tokens, blocks.size(), options.threads, plugin_keys, plugin_kinds);
  };
  const std::vector<Choices> last = routed(checkpoints.front());
  Specialisation found;
  found.step = checkpoints.front().step;
  found.sets = tokens.sets;
  found.tokens.assign(tokens.sets.size(), 0);
  std::int64_t chosen = 0, all = 0;
  for_tokens(tokens, last.front(), [&](std::size_t set, std::int32_t, std::span<const std::int32_t> of) {
    ++found.tokens[set];
    ++all;
    chosen += std::count_if(of.begin(), of.end(), [](std::int32_t e) { return e >= 0; });
  });
  found.chosen = static_cast<double>(chosen) / static_cast<double>(std::max<std::int64_t>(all, 1));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    found.layers.push_back(
        use_of(blocks[i], tokens, last[i], static_cast<std::size_t>(settings.moe.columns()), options.listed));
  }
  for (auto before = checkpoints.rbegin(); before != checkpoints.rend() - 1; ++before) {
    const std::vector<Choices> then = routed(*before);
    Saturation& saturation = found.saturation.emplace_back(Saturation{before->step, {}});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      saturation.layers.push_back(overlap(tokens, then[i], last[i]));
    }
  }
  found.texts = texts_of(found, tokenizer_to_keep(settings).get(), settings);
  return found;
}

std::filesystem::path specialisation_file(const std::filesystem::path& run) {
  return run / "routing" / "experts.json";
}

std::string to_json(const Specialisation& found) {
  using OrderedJson = nlohmann::ordered_json;
  const auto tokens = [&](const std::vector<ChosenToken>& list) {
    OrderedJson all = OrderedJson::array();
    for (const ChosenToken& token : list) {
      all.push_back({{"id", token.id},
                     {"text", found.texts.at(static_cast<std::size_t>(token.id))},
                     {"count", token.count},
                     {"share", token.share}});
    }
    return all;
  };
  OrderedJson json = {{"step", found.step},
                      {"chosen", found.chosen},
                      {"sets", OrderedJson::array()},
                      {"layers", OrderedJson::array()},
                      {"saturation", OrderedJson::array()}};
  for (std::size_t i = 0; i < found.sets.size(); ++i) {
    json["sets"].push_back({{"name", found.sets[i]}, {"tokens", found.tokens[i]}});
  }
  for (const LayerUse& layer : found.layers) {
    OrderedJson experts = OrderedJson::array();
    for (const ExpertUse& use : layer.experts) {
      experts.push_back({{"choices", use.choices},
                         {"frequent", tokens(use.frequent)},
                         {"specialised", tokens(use.specialised)},
                         {"of_sets", use.of_sets}});
    }
    json["layers"].push_back({{"block", layer.block}, {"experts", experts}});
  }
  for (const Saturation& at : found.saturation) {
    json["saturation"].push_back({{"step", at.step}, {"layers", at.layers}});
  }
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace orthant
