#include "core/dry_run/cheaper.h"

#include <orthant/gate.h>

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "core/arch/cost.h"
#include "core/arch/parameter_table.h"
#include "core/base/bytes_text.h"
#include "core/config/value_text.h"
#include "core/plan/batch_share.h"
#include "core/session/session.h"

namespace orthant {
namespace {

// Operations that a rank makes while it sends a byte: of a GPU with 1000 TFLOP/s, 2200 over NVLink (450 GB/s) and 20000
// over a network card (50 GB/s).
constexpr double flops_of_a_byte = 5000;

std::string amount(double flops) {
  const char* unit = "FLOP";
  for (const char* larger : {"kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"}) {
    if (flops < 1000) {
      break;
    }
    flops /= 1000;
    unit = larger;
  }
  return fmt::format("{:.3g} {}", flops, unit);
}

class Trials {
 public:
  Trials(const Config& config, const Need& now, std::int64_t limit) : config_(config), now_(now), limit_(limit) {}

  void recompute() {
    const std::string& present = config_.settings.memory.recompute;
    if (present == "none") {
      keep(attempt(set_recompute(config_, "selective"), "memory.recompute = \"selective\"", activations()));
    }
    if (present != "full") {
      keep(attempt(set_recompute(config_, "full"), "memory.recompute = \"full\"", blocks()));
    }
  }

  void in_backward() {
    const OptimizerSettings& optimizer = config_.settings.optimizer;
    if (!optimizer.in_backward && optimizer.clip_grad_norm == 0) {
      Config with = config_;
      with.settings.optimizer.in_backward = true;
      keep(attempt(with, "optimizer.in_backward = true", 0));
    }
  }

  // Halved until it fits.
  void micro_batch() {
    for (std::int64_t size = micro_batch_of(config_) / 2; size > 0; size /= 2) {
      if (keep(attempt(set_micro_batch(config_, size), fmt::format("batch.micro_batch = {}", size), 0))) {
        return;
      }
    }
  }

  // Of each key of a plugin the first that fits.
  void plugins() {
    const std::vector<std::vector<KeyChange>> all = Session(config_).smaller();
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::set<std::string> done;
      for (const KeyChange& change : all[i]) {
        if (done.count(change.key) == 0 && keep(attempt(set_key(config_, i, change), text_of(i, change), 0))) {
          done.insert(change.key);
        }
      }
    }
  }

  void capacity() {
    const MoeSettings& moe = config_.settings.moe;
    if (moe.experts == 0 || moe.capacity_factor > 0) {
      return;
    }
    for (double factor : {2.0, 1.25}) {
      Config with = config_;
      with.settings.moe.capacity_factor = factor;
      if (gate_of(with.settings).refusals(with.settings).empty() &&
          keep(attempt(with, fmt::format("moe.capacity_factor = {}", factor), 0), true)) {
        return;
      }
    }
  }

  // What none of them does alone.
  void together() {
    std::vector<std::string> texts;
    Config with = config_;
    double flops = 0;
    if (config_.settings.memory.recompute != "full") {
      with = set_recompute(with, "full");
      texts.emplace_back("memory.recompute = \"full\"");
      flops = blocks();
    }
    const std::vector<std::vector<KeyChange>> all = Session(config_).smaller();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].empty()) {
        with = set_key(with, i, all[i].back());
        texts.push_back(text_of(i, all[i].back()));
      }
    }
    for (std::int64_t size = micro_batch_of(config_); size > 0; size /= 2) {
      std::string text = fmt::format("{}", fmt::join(texts, " and "));
      if (size < micro_batch_of(config_)) {
        text += fmt::format("{}batch.micro_batch = {}", text.empty() ? "" : " and ", size);
        with = set_micro_batch(with, size);
      }
      if (!text.empty() && keep(attempt(with, text, flops))) {
        return;
      }
    }
  }

  std::vector<Saving> result() && { return std::move(fit_); }
  bool any() const { return !fit_.empty(); }

 private:
  static Config set_recompute(Config config, const char* to) {
    config.settings.memory.recompute = to;
    return config;
  }
  static Config set_micro_batch(Config config, std::int64_t size) {
    config.settings.batch.micro_batch = size;
    return config;
  }
  static Config set_key(Config config, std::size_t plugin, const KeyChange& change) {
    Table& table = config.plugins[plugin].table;
    std::map<std::string, Table::Entry> entries = table.entries();
    entries.at(change.key).value = change.value;
    table = Table(table.path(), std::move(entries));
    return config;
  }
  std::string text_of(std::size_t plugin, const KeyChange& change) const {
    return fmt::format("{}.{} = {}", config_.plugins[plugin].table.path(), change.key, toml_text(change.value));
  }
  static std::int64_t micro_batch_of(const Config& config) {
    Session session(config);
    session.plan(0, nullptr, nullptr);
    return batch_share(session.plan()).micro_batch;
  }

  double tokens_of_a_rank() const {
    return static_cast<double>(config_.settings.batch.sequences * config_.settings.data.sequence_length) /
           static_cast<double>(Session(config_).world_size());
  }
  // Of all blocks, once more.
  double blocks() const {
    const std::vector<double> costs = layer_costs(config_.settings);
    double forward = 0;
    for (std::size_t i = 1; i + 1 < costs.size(); ++i) {
      forward += costs[i];
    }
    return tokens_of_a_rank() * forward;
  }
  // About ten operations for each channel of a dense FFN.
  double activations() const {
    const Settings& s = config_.settings;
    double channels = 0;
    for (int block = 0; block < s.model.layers; ++block) {
      channels +=
          static_cast<double>(block_has_experts(s, block) ? s.moe.shared_experts * d_expert_of(s)
                                                          : (s.model.d_ff > 0 ? s.model.d_ff : 4 * s.model.d_model));
    }
    return tokens_of_a_rank() * 10 * channels;
  }

  // Nothing where the layout cannot be changed so.
  std::optional<Saving> attempt(const Config& with, std::string text, double flops) const {
    try {
      check_layout(with);
      const Need need = memory_need(with);
      return Saving{.what = std::move(text), .need = need, .flops = flops, .bytes = need.sent - now_.sent};
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  bool keep(std::optional<Saving> change, bool drops = false) {
    if (!change || change->need.worst > limit_) {
      return false;
    }
    change->drops = drops;
    fit_.push_back(std::move(*change));
    return true;
  }

  const Config& config_;
  const Need& now_;
  const std::int64_t limit_;
  std::vector<Saving> fit_;
};

}  // namespace

double Saving::price() const {
  return flops + flops_of_a_byte * static_cast<double>(std::max<std::int64_t>(bytes, 0));
}

std::string Saving::cost() const {
  std::string text;
  if (flops > 0) {
    text = fmt::format("computes {} again in a step", amount(flops));
  }
  if (bytes > 0) {
    text += fmt::format("{}sends {} more in a step", text.empty() ? "" : ", ", bytes_text(bytes));
  }
  if (drops) {
    text += fmt::format("{}drops the choices beyond it", text.empty() ? "" : ", ");
  }
  return text.empty() ? "computes and sends no more" : text;
}

std::vector<Saving> fitting_changes(const Config& config, const Need& now, std::int64_t limit) {
  Trials trials(config, now, limit);
  trials.in_backward();
  trials.recompute();
  trials.micro_batch();
  trials.plugins();
  trials.capacity();
  if (!trials.any()) {
    trials.together();
  }
  std::vector<Saving> found = std::move(trials).result();
  std::stable_sort(found.begin(), found.end(), [](const Saving& a, const Saving& b) {
    return std::pair(a.drops, a.price()) < std::pair(b.drops, b.price());
  });
  return found;
}

}  // namespace orthant
