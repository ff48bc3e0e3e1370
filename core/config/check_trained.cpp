#include "core/config/check_trained.h"

#include <orthant/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/arch/links.h"
#include "core/arch/trained.h"
#include "core/arch/trained_text.h"
#include "core/config/rules.h"
#include "core/config/suggest.h"

namespace orthant {
namespace {

constexpr std::size_t most_kinds = 8;

// What the pattern may have meant: a kind of the names, or the end of one ("*.q_proj.weight"); else some of them.
std::string near(const std::string& pattern, const std::vector<std::string>& names) {
  std::vector<std::string> kinds, known;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    const std::string kind = kind_of_name(name);
    if (!seen.insert(kind).second) {
      continue;
    }
    kinds.push_back(kind);
    known.push_back(kind);
    for (std::size_t dot = kind.find('.'); dot != std::string::npos; dot = kind.find('.', dot + 1)) {
      known.push_back("*" + kind.substr(dot));
    }
  }
  if (const auto meant = nearest(pattern, known)) {
    return fmt::format("did you mean \"{}\"?", *meant);
  }
  const std::size_t shown = std::min(kinds.size(), most_kinds);
  return fmt::format("the names are {}{}",
                     fmt::join(kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     kinds.size() > shown ? fmt::format(" and {} more", kinds.size() - shown) : "");
}

void expect_matches(const std::string& key, const std::vector<std::string>& patterns,
                    const std::vector<std::string>& names, const char* what) {
  for (const std::string& pattern : patterns) {
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); })) {
      throw SettingError(key, fmt::format("{}: \"{}\" names no {}\n{}", key, pattern, what, near(pattern, names)));
    }
  }
}

// The first pattern that stands for a parameter counts, so one behind it that stands for no other does nothing.
void expect_some_left(const std::vector<std::string>& patterns, const std::vector<std::string>& names) {
  for (auto pattern = patterns.begin(); pattern != patterns.end(); ++pattern) {
    const std::vector<std::string> earlier(patterns.begin(), pattern);
    if (std::all_of(names.begin(), names.end(),
                    [&](const std::string& name) { return !matches(*pattern, name) || matches_any(earlier, name); })) {
      throw SettingError("optimizer.lr_of",
                         fmt::format("optimizer.lr_of: \"{}\" names only parameters that patterns before it name, and "
                                     "the first one counts\nwrite it before them, or leave it out",
                                     *pattern));
    }
  }
}

void check_lora(const LoraSettings& lora) {
  if (lora.rank == 0) {
    if (!lora.targets.empty() || !lora.train_also.empty() || !lora.rank_of.empty() || !lora.alpha_of.empty()) {
      throw SettingError("lora.rank",
                         "lora.rank: 0 makes no adapters, and [lora] names what gets them\nwrite rank = 8, say, "
                         "or leave out targets, train_also, rank_of and alpha_of");
    }
    return;
  }
  if (lora.targets.empty()) {
    throw SettingError("lora.targets",
                       "lora.targets: names no matrix that gets an adapter\nwrite targets = "
                       "[\"*.q_proj.weight\", \"*.v_proj.weight\"], say, or rank = 0");
  }
  const auto as_many = [](const char* key, const char* values, std::size_t patterns, std::size_t count) {
    if (patterns != count) {
      throw SettingError(key, fmt::format("{}: {} patterns, and {} has {} numbers\nwrite one for each pattern", key,
                                          patterns, values, count));
    }
  };
  as_many("lora.rank_of", "lora.ranks", lora.rank_of.size(), lora.ranks.size());
  as_many("lora.alpha_of", "lora.alphas", lora.alpha_of.size(), lora.alphas.size());
  constexpr std::int64_t most = 1 << 16;
  for (const std::int64_t rank : lora.ranks) {
    if (rank < 1 || rank > most) {
      throw SettingError("lora.ranks",
                         fmt::format("lora.ranks: {} is no rank\nwrite whole numbers from 1 to {}", rank, most));
    }
  }
  if (!positive_float(lora.init_std) || !finite_float(lora.init_std)) {
    throw SettingError("lora.init_std",
                       fmt::format("lora.init_std: {}: with A and B zero, neither ever gets a gradient\nwrite a "
                                   "number above 0, such as 0.02",
                                   lora.init_std));
  }
}

// adapted: the matrices that have adapters.
void check_lora_factors(const LoraSettings& lora, const std::vector<std::string>& adapted) {
  expect_matches("lora.rank_of", lora.rank_of, adapted, "matrix with an adapter");
  expect_matches("lora.alpha_of", lora.alpha_of, adapted, "matrix with an adapter");
  for (const std::string& name : adapted) {
    if (const double scale = lora.scale_for(name); !positive_float(scale) || !finite_float(scale)) {
      throw SettingError("lora.alpha", fmt::format("lora.alpha: {} is no factor that the adapter of '{}' can have, of "
                                                   "rank {}\nwrite alpha = 16, say",
                                                   scale, name, lora.rank_for(name)));
    }
  }
}

}  // namespace

void check_trained(const Settings& settings) {
  const LoraSettings& lora = settings.lora;
  check_lora(lora);
  std::vector<std::string> names, matrices, adapted, base;
  bool any = false;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      names.push_back(spec.name);
      any = any || !spec.frozen;
      if (is_adapter(spec.name)) {
        continue;
      }
      base.push_back(spec.name);
      if (adaptable(layer, spec)) {
        matrices.push_back(spec.name);
      }
      if (spec.adapted) {
        adapted.push_back(spec.name);
      }
      if (spec.adapted && !spec.frozen) {
        throw SettingError("lora.train_also", fmt::format("lora.train_also: '{}' has an adapter, which trains in its "
                                                          "place\nname it in targets or in train_also, not in both",
                                                          spec.name));
      }
    }
  }
  expect_matches("train.freeze", settings.train.freeze, names, "parameter of this model");
  expect_matches("train.train_only", settings.train.train_only, names, "parameter of this model");
  expect_matches("lora.targets", lora.targets, matrices, "matrix of this model that can have an adapter");
  expect_matches("lora.train_also", lora.train_also, base, "parameter of this model");
  check_lora_factors(lora, adapted);
  expect_matches("optimizer.lr_of", settings.optimizer.lr_of, names, "parameter of this model");
  expect_matches("optimizer.no_decay", settings.optimizer.no_decay, names, "parameter of this model");
  expect_some_left(settings.optimizer.lr_of, names);
  if (!any) {
    const bool by_freeze = !settings.train.freeze.empty();
    throw SettingError(by_freeze ? "train.freeze" : "train.train_only",
                       fmt::format("{}: all parameters of this model are frozen, and nothing is left to train\nname "
                                   "fewer of them",
                                   by_freeze ? "train.freeze" : "train.train_only"));
  }
}

}  // namespace orthant
