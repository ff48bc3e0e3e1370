#include "bench/study/grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <orthant/gate.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "apps/pretrained/setting_key.h"
#include "bench/study/counterfactual.h"
#include "core/arch/links.h"
#include "core/config/config.h"
#include "core/config/validate.h"
#include "core/run/check_start.h"
#include "core/session/session.h"

namespace orthant {
namespace {

constexpr std::size_t told_points = 3;  // whose reasons a refusal tells

double router_flops(const Settings& s) {
  return 3 * 2 * static_cast<double>(s.model.d_model) * static_cast<double>(s.moe.experts) * routed_in(links_of(s));
}

std::pair<std::int64_t, std::int64_t> count_parameters(const Settings& s) {
  std::int64_t total = 0;
  double idle = 0;  // of routed experts that a token does not choose
  for (const LayerSpecs& layer : parameter_table(s)) {
    for (const ParamSpec& spec : layer.params) {
      const std::int64_t elements = spec.global.elements();
      total += elements;
      if (spec.expert) {  // not layer.experts: biases of experts have a layer of their own
        idle += static_cast<double>(elements) *
                (1 - gate_of(s).experts_of_token(s.moe) / static_cast<double>(s.moe.experts));
      }
    }
  }
  return {total, total - std::llround(idle)};
}

// Keys that a study sets of every point, and where it is told what to.
struct OwnKey {
  std::string_view key, instead;
};
constexpr std::array own_keys = {
    OwnKey{"run.seed", "[[grid]] seeds"},
    OwnKey{"run.name", "[study] name"},
    OwnKey{"run.directory", "[study] directory"},
    OwnKey{"run.threads", "[study] side_by_side"},
    OwnKey{"run.keep", "[study] keep_checkpoints"},
    OwnKey{"moe.experts", "[[grid]] experts"},
    OwnKey{"run.time_limit", "its time before the study: timeout --signal=TERM SECONDS orthant bench ..."},
    OwnKey{"moe.top_k", "[[grid]] top_k"},
    OwnKey{"moe.capacity_factor", "[[grid]] capacity_factor"},
};
constexpr OwnKey learning_rate_key = {"optimizer.lr", "[learning_rate]"};
constexpr OwnKey width_key = {"moe.d_expert", "model.d_ff and [[grid]] granularity"};

void refuse_key(const OwnKey& own, const std::string& setting, const std::string& where) {
  const std::string key = setting_key(setting);
  if (own.key.starts_with(key + ".")) {
    throw ConfigError(fmt::format("{}: {}: the study sets {} of every point itself; write the keys of [{}] one by one",
                                  where, setting, own.key, key));
  }
  if (key == own.key) {
    throw ConfigError(fmt::format("{}: {}: the study sets {} of every point itself; leave it out, and write {}", where,
                                  setting, own.key, own.instead));
  }
}

void refuse_own_keys(const StudyFile& study, const std::vector<std::string>& set, const std::string& where) {
  for (const std::string& setting : set) {
    for (const OwnKey& own : own_keys) {
      refuse_key(own, setting, where);
    }
    if (study.learning_rate) {
      refuse_key(learning_rate_key, setting, where);
    }
  }
}

void refuse_own_keys(const StudyFile& study, const std::vector<std::string>& overrides) {
  const auto check = [&](const std::vector<std::string>& set, const std::string& title) {
    const std::string where = fmt::format("{}: {}", study.path, title);
    refuse_own_keys(study, set, where);
    for (const std::string& setting : set) {
      refuse_key(width_key, setting, where);
    }
  };
  check(study.set, "[study] set");
  for (const NamedSettings& size : study.sizes) {
    check(size.set, fmt::format("[[size]] '{}' set", size.name));
  }
  for (const NamedSettings& layout : study.layouts) {
    check(layout.set, fmt::format("[[layout]] '{}' set", layout.name));
  }
  refuse_own_keys(study, overrides, "--set");  // it comes last: a width of an expert changes the cost, which is refused
}

// Combinations of a grid's lists. A double, because the product may be more than an integer holds.
double combinations(const StudyGrid& grid) {
  double product = 1;
  for (const std::size_t length :
       {grid.sizes.size(), grid.layouts.size(),
        grid.experts.empty() ? grid.experts_per_rank.size() : grid.experts.size(), grid.top_k.size(),
        grid.granularity.size(), grid.capacity_factor.size(), grid.lr_factor.size(), grid.seeds.size()}) {
    product *= static_cast<double>(length);
  }
  return product;
}

// Each point's configuration is loaded, and each is a run: what nobody meant to write is refused before that.
void refuse_too_many(const StudyFile& study) {
  double points = 0;
  for (const StudyGrid& grid : study.grids) {
    points += combinations(grid);
  }
  if (points > static_cast<double>(study.most_points)) {
    throw ConfigError(fmt::format(
        "{}: its grids have {:.0f} points, and [study] most_points allows {}: shorten their lists, or write "
        "most_points = {:.0f} if that many runs are meant",
        study.path, points, study.most_points, points));
  }
}

// With all its digits, in the name of a folder.
std::string name_of(double number) {
  std::string name = fmt::format("{}", number);
  std::erase(name, '+');  // of 1e+20
  return name;
}

class PointMaker {
 public:
  PointMaker(const StudyFile& study, const std::vector<std::string>& overrides)
      : study_(study), overrides_(overrides) {}

  std::vector<GridPoint> make() {
    refuse_own_keys(study_, overrides_);
    refuse_too_many(study_);
    for (const StudyGrid& grid : study_.grids) {
      for (const std::string& size : grid.sizes) {
        for (const std::string& layout : grid.layouts) {
          make_experts(grid, size, layout);
        }
      }
    }
    if (!refused_.empty()) {
      std::string text = fmt::format("{}: {} of the points cannot run", study_.path, refused_.size());
      for (std::size_t i = 0; i < std::min(refused_.size(), told_points); ++i) {
        text += fmt::format("\n{}", refused_[i]);
      }
      throw ConfigError(text);
    }
    return std::move(points_);
  }

 private:
  static const NamedSettings& named(const std::vector<NamedSettings>& all, const std::string& name) {
    return *std::find_if(all.begin(), all.end(), [&](const NamedSettings& one) { return one.name == name; });
  }

  void make_experts(const StudyGrid& grid, const std::string& size, const std::string& layout) {
    const bool weak = grid.experts.empty();
    for (std::int64_t count : weak ? grid.experts_per_rank : grid.experts) {
      for (std::int64_t seed : grid.seeds) {
        for (std::int64_t top_k : grid.top_k) {
          for (std::int64_t granularity : grid.granularity) {
            for (double capacity_factor : grid.capacity_factor) {
              for (double lr_factor : grid.lr_factor) {
                GridPoint point;
                point.size = size;
                point.layout = layout;
                point.seed = seed;
                point.experts = count;
                point.top_k = top_k;
                point.granularity = granularity;
                point.capacity_factor = capacity_factor;
                point.lr_factor = lr_factor;
                add(std::move(point), weak);
              }
            }
          }
        }
      }
    }
  }

  // What a size and a layout say alone, dense: its settings and ranks.
  struct Base {
    Settings settings;
    int ranks = 1;
  };

  std::vector<std::string> base_set(const GridPoint& point) const {
    std::vector<std::string> set = study_.set;
    for (const NamedSettings* one : {&named(study_.sizes, point.size), &named(study_.layouts, point.layout)}) {
      set.insert(set.end(), one->set.begin(), one->set.end());
    }
    return set;
  }

  Config load(const std::vector<std::string>& set) const {
    std::vector<std::string> all = set;
    all.insert(all.end(), overrides_.begin(), overrides_.end());
    return load_config(study_.config, all, keys_of_plugin, kinds_of_plugin);
  }

  // Errors: ConfigError.
  const Base& base(const GridPoint& point) {
    const auto key = std::pair(point.size, point.layout);
    const auto known = bases_.find(key);
    if (known != bases_.end()) {
      return known->second;
    }
    std::vector<std::string> set = base_set(point);
    set.emplace_back("moe.experts=0");
    const Config config = load(set);
    return bases_.emplace(key, Base{config.settings, Session(config).world_size()}).first->second;
  }

  void add(GridPoint point, bool weak) {
    try {
      const Base& twin = base(point);
      point.ranks = twin.ranks;
      if (weak) {
        point.experts *= twin.ranks;
      }
      if (point.experts == 1) {  // no router, whatever the grid says of it
        point.top_k = point.granularity = 1;
        point.capacity_factor = 0;
      }
      point.id = fmt::format("{}{}_s{}", point.shape(), point.lr_factor == 1 ? "" : "_lr" + name_of(point.lr_factor),
                             point.seed);
      if (!ids_.insert(point.id).second) {
        return;
      }
      complete(point, twin.settings);
      points_.push_back(std::move(point));
    } catch (const ConfigError& error) {
      refused_.push_back(fmt::format("point {}: {}", point.id.empty() ? point.shape() : point.id, error.what()));
    }
  }

  void complete(GridPoint& point, const Settings& twin) {
    point.set = settings_of(point, twin);
    Config config = load(point.set);
    check_start(config, Ranks::processes);
    const Settings& s = config.settings;
    if (s.run.validate_every == 0) {
      throw ConfigError(
          "run.validate_every = 0: the result of a point is its validation loss, and no such point has one. Write "
          "validate_every = N in [run] of the study's configuration, or set run.validate_every=N in [study]; the last "
          "step validates whatever N is");
    }
    if (!s.batch.grow_to.empty()) {
      throw ConfigError(
          "batch.grow_to: the points of a study are timed by steps of one size. Leave batch.grow_after and "
          "batch.grow_to "
          "out of the study's configuration, and write batch.sequences");
    }
    point.warnings = warnings(s);
    point.set.insert(point.set.end(), overrides_.begin(), overrides_.end());
    std::tie(point.total_parameters, point.active_parameters) = count_parameters(s);
    point.router_flops = router_flops(s);
    point.model_flops = training_flops(links_of(s)) - point.router_flops;
    const double wanted = training_flops(links_of(twin));
    if (std::abs(point.model_flops / wanted - 1) > 1e-9) {
      throw ConfigError(fmt::format(
          "a token takes {:.6g} operations and {:.6g} in the dense twin: points of a study must cost the same. Leave "
          "settings that change it to the study (moe.experts, moe.top_k, moe.d_expert), or set the same in all points",
          point.model_flops, wanted));
    }
    const std::int64_t width = s.run.dtype == ComputeType::bf16 ? 2 : 4;
    point.dispatch_bytes = s.moe.experts == 0 ? 0
                                              : std::llround(4 * gate_of(s).experts_of_token(s.moe)) * s.model.d_model *
                                                    width * routed_in(links_of(s));
    point.steps = s.run.steps;
    point.tokens = s.run.steps * s.batch.sequences * s.data.sequence_length;
  }

  std::vector<std::string> settings_of(const GridPoint& point, const Settings& twin) const {
    std::vector<std::string> set = base_set(point);
    const auto put = [&](const char* key, auto value) { set.push_back(fmt::format("{}={}", key, value)); };
    if (point.experts == 1) {
      put("moe.experts", 0);
    } else {
      const std::int64_t computing = point.top_k * point.granularity + twin.moe.shared_experts;
      const std::int64_t width = d_ff_of(twin);
      if (width % computing != 0) {
        throw ConfigError(
            fmt::format("a token's {} experts have to be as wide as the dense twin's FFN together, and its width {} is "
                        "no multiple of {}: choose another model.d_ff",
                        computing, width, computing));
      }
      put("moe.experts", point.experts * point.granularity);
      put("moe.top_k", point.top_k * point.granularity);
      put("moe.d_expert", width / computing);
      put("moe.capacity_factor", point.capacity_factor);
    }
    if (study_.learning_rate || point.lr_factor != 1) {
      const double of_size =
          study_.learning_rate ? learning_rate(*study_.learning_rate, twin.model.d_model) : twin.optimizer.lr;
      const double lr = of_size * point.lr_factor;
      put("optimizer.lr", fmt::format("{:.6g}", lr));
      put("optimizer.min_lr", fmt::format("{:.6g}", lr * twin.optimizer.min_lr / twin.optimizer.lr));
    }
    put("run.seed", point.seed);
    if (!study_.counterfactual.empty() && is_recorded(point)) {
      put("run.record_routing", 1);
    }
    return set;
  }

  const StudyFile& study_;
  const std::vector<std::string>& overrides_;
  std::map<std::pair<std::string, std::string>, Base> bases_;  // by size and layout
  std::set<std::string> ids_;
  std::vector<GridPoint> points_;
  std::vector<std::string> refused_;
};

}  // namespace

std::string GridPoint::shape() const {
  const std::string capacity = capacity_factor == 0 ? "" : "_c" + name_of(capacity_factor);
  return fmt::format("{}_e{}_k{}_g{}{}_{}", size, experts, top_k, granularity, capacity, layout);
}

double learning_rate(const LearningRateRule& rule, std::int64_t d_model) {
  return rule.lr * std::pow(static_cast<double>(d_model) / static_cast<double>(rule.d_model), rule.exponent);
}

std::string rule_text(const StudyFile& study) {
  std::set<double> factors;
  for (const StudyGrid& grid : study.grids) {
    factors.insert(grid.lr_factor.begin(), grid.lr_factor.end());
  }
  const std::string tried =
      factors == std::set<double>{1}
          ? ""
          : fmt::format(" It is tried times {}, and a point stands for the best of them.", fmt::join(factors, ", "));
  if (!study.learning_rate) {
    return "The learning rate is the configuration's, the same for every point." + tried;
  }
  const LearningRateRule& rule = *study.learning_rate;
  return fmt::format("The learning rate is {:g} * (d_model / {})^{:g}, the same for every number of experts.", rule.lr,
                     rule.d_model, rule.exponent) +
         tried;
}

std::vector<GridPoint> make_points(const StudyFile& study, const std::vector<std::string>& overrides) {
  return PointMaker(study, overrides).make();
}

}  // namespace orthant
