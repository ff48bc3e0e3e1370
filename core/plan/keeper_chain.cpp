#include "core/plan/keeper_chain.h"

#include <algorithm>
#include <set>

#include <orthant/device.h>

namespace orthant {
namespace {

// What a hook threw, with the plugin's name where it is not told yet. What the user can change in the configuration is
// reported at the plugin's table, and stays as it is.
template <class Call>
auto named(const std::string& plugin, const char* hook, Call call) {
  try {
    return call();
  } catch (const Error& error) {
    const std::string what = error.what();
    if (error.code() == ExitCode::bad_configuration || what.find("'" + plugin + "'") != std::string::npos) {
      throw;
    }
    throw Error(fmt::format("plugin '{}', {}: {}", plugin, hook, what), error.code());
  } catch (const std::exception& error) {
    throw Error(fmt::format("plugin '{}', {}: {}", plugin, hook, error.what()));
  }
}

// What no keeper may change, though it has the group in its hands.
bool same_place(const ParamGroup& a, const ParamGroup& b) {
  const auto same_param = [](const Param& x, const Param& y) {
    return x.begin == y.begin && x.counted == y.counted && x.elements() == y.elements();
  };
  return a.id == b.id && a.layer == b.layer && a.experts == b.experts && a.scattered == b.scattered &&
         a.frozen == b.frozen && a.elements == b.elements && a.sum == b.sum && a.grad_dtype == b.grad_dtype &&
         std::equal(a.params.begin(), a.params.end(), b.params.begin(), b.params.end(), same_param);
}

void check_holding(const ParamGroup& group, const Holding& h, const std::string& plugin) {
  require(h.padded >= group.elements && h.owned_begin >= 0 && h.owned_elements >= 0 &&
              h.owned_begin + h.owned_elements <= h.padded,
          "plugin '{}' gives '{}' an impossible holding: elements {} to {} owned of {}, in buffers of {}", plugin,
          group.name, h.owned_begin, h.owned_begin + h.owned_elements, group.elements, h.padded);
}

MemoryKind kind_of(Held what) {
  switch (what) {
    case Held::weight: return MemoryKind::weights;
    case Held::grad:
    case Held::whole_grad: return MemoryKind::gradients;
    case Held::state:
    case Held::saved:
    case Held::trial: break;
  }
  return MemoryKind::states;
}

}  // namespace

template <class Call>
void KeeperChain::each(const char* hook, Call call) {
  for (const Link& link : links_) {
    named(link.plugin, hook, [&] { call(*link.keeper); });
  }
}

void KeeperChain::add(std::string plugin, std::unique_ptr<Keeper> keeper) {
  const bool first = keeper->outermost();
  const auto inner = std::find_if(links_.begin(), links_.end(), [](const Link& l) { return !l.keeper->outermost(); });
  links_.insert(first ? inner : links_.end(), Link{std::move(plugin), std::move(keeper)});
}

void KeeperChain::check_sums() const {
  const Link* earlier = nullptr;
  for (const Link& link : links_) {
    const Sums sums = link.keeper->sums();
    if (sums == Sums::all && earlier != nullptr) {
      throw ConfigError(
          fmt::format("plugin '{}' sums gradients itself, but '{}' before it would have summed them already: put "
                      "[plugins.{}] before [plugins.{}]",
                      link.plugin, earlier->plugin, link.plugin, earlier->plugin));
    }
    earlier = sums != Sums::none && earlier == nullptr ? &link : earlier;
  }
}

void KeeperChain::check_in_backward() const {
  for (const Link& link : links_) {
    if (!link.keeper->early()) {
      throw SettingError(
          "optimizer.in_backward",
          fmt::format("[optimizer] in_backward: plugin '{}' needs the gradients of all groups before one "
                      "of them is updated\nwrite in_backward = false, or leave [plugins.{}] out",
                      link.plugin, link.plugin));
    }
  }
}

void KeeperChain::check_narrow_gradients() const {
  for (const Link& link : links_) {
    if (!link.keeper->narrow_gradients()) {
      throw SettingError("optimizer.gradient_dtype",
                         fmt::format("[optimizer] gradient_dtype: plugin '{}' does not say that it takes gradients in "
                                     "bf16\nwrite gradient_dtype = \"fp32\", or leave [plugins.{}] out",
                                     link.plugin, link.plugin));
    }
  }
}

void KeeperChain::sum_group(Mesh& mesh, Group& sum) {
  each("sum_group", [&](Keeper& keeper) { keeper.sum_group(mesh, sum); });
}

// An update is tried before all gradients are whole.
void KeeperChain::check_trial(const ParamGroup& group, const std::string& plugin) const {
  for (const Link& link : links_) {
    if (!link.keeper->early()) {
      throw ConfigError(fmt::format(
          "plugin '{}' tries the update of '{}' in the backward pass, but '{}' must see all gradients first: "
          "leave one of the two out, or let '{}' update at the end of the step",
          plugin, group.name, link.plugin, plugin));
    }
  }
}

void KeeperChain::adopt(ParamGroup& group) {
  for (const Link& link : links_) {
    const ParamGroup before = group;
    Holding holding = group;
    named(link.plugin, "adopt", [&] { link.keeper->adopt(group, holding); });
    require(same_place(group, before) && static_cast<const Holding&>(group) == before,
            "plugin '{}' changes the group '{}' in adopt: it may change the holding that it is given, and nothing else "
            "(its sum and its parameters are the plan's)",
            link.plugin, group.name);
    const Away away = holding.away;
    if (away != before.away) {
      const auto [holder, first] = away_.emplace(group.id, link.plugin);
      if (!first) {
        throw ConfigError(fmt::format("plugins '{}' and '{}' both keep something of '{}' elsewhere: at most one can",
                                      holder->second, link.plugin, group.name));
      }
    }
    const bool tries = holding.tries;
    if (tries && !before.tries) {
      check_trial(group, link.plugin);
    }
    holding.away = before.away;
    holding.tries = before.tries;
    if (holding != before) {
      const auto [holder, first] = holders_.emplace(group.id, link.plugin);
      if (!first) {
        throw ConfigError(fmt::format("plugins '{}' and '{}' both share out what ranks hold of '{}': at most one can",
                                      holder->second, link.plugin, group.name));
      }
      check_holding(group, holding, link.plugin);
    }
    holding.away = away;
    holding.tries = tries;
    static_cast<Holding&>(group) = holding;
  }
  if (group.frozen) {
    group.away.grad = false;
    group.whole_grad = true;
    group.sum_each = false;
    group.tries = false;
  }
  std::set<std::string> names;
  for (const Link& link : links_) {
    for (StateSpec& spec : named(link.plugin, "state", [&] { return link.keeper->state(group); })) {
      const std::string name = fmt::format("plugins/{}/{}", link.plugin, spec.name);
      require(!spec.name.empty() && names.insert(name).second, "plugin '{}' names two states of '{}' \"{}\"",
              link.plugin, group.name, spec.name);
      group.plugin_states.push_back({.name = name,
                                     .kind = spec.kind,
                                     .tensor = {},
                                     .restored = false,
                                     .shape = spec.shape,
                                     .dtype = spec.kind == StateKind::per_rank ? spec.dtype : DType::f32});
    }
  }
}

std::string KeeperChain::holder_of(const ParamGroup& group) const {
  const auto found = holders_.find(group.id);
  return found == holders_.end() ? "" : found->second;
}

void KeeperChain::acquire(ParamGroup& group, Held what, const HookContext& at) {
  const MemoryScope as(at.stream.device(), kind_of(what));
  const bool had_grad = group.grad.defined();
  each("acquire", [&](Keeper& keeper) { keeper.acquire(group, what, at); });
  if (what == Held::grad && !had_grad && !group.whole_grad) {
    group.grad_empty = true;  // a new buffer
  }
}

void KeeperChain::release(ParamGroup& group, Held what, const HookContext& at) {
  const MemoryScope as(at.stream.device(), kind_of(what));
  for (auto link = links_.rbegin(); link != links_.rend(); ++link) {
    named(link->plugin, "release", [&] { link->keeper->release(group, what, at); });
  }
}

bool KeeperChain::reads_rows() const {
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.keeper->reads_rows(); });
}

void KeeperChain::rows_of_experts(ParamGroup& group, std::span<const std::int64_t> rows, const HookContext& at) {
  each("rows_of_experts", [&](Keeper& keeper) { keeper.rows_of_experts(group, rows, at); });
}

void KeeperChain::gradients_ready(ParamGroup& group, const HookContext& at) {
  const MemoryScope as(at.stream.device(), MemoryKind::gradients);
  group.summed = false;
  group.sum_done = nullptr;
  each("grad_ready", [&](Keeper& keeper) { keeper.grad_ready(group, at); });
  for (const Link& link : links_) {
    if (named(link.plugin, "sum_grads", [&] { return link.keeper->sum_grads(group, at); })) {
      group.summed = true;
      return;
    }
  }
}

void KeeperChain::finish_sums(const HookContext& at) {
  const MemoryScope as(at.stream.device(), MemoryKind::gradients);
  each("finish_sums", [&](Keeper& keeper) { keeper.finish_sums(at); });
}

namespace {

HookContext on_stream(Stream* home, const HookContext& at) {
  return {.stream = home == nullptr ? at.stream : *home,
          .step = at.step,
          .lr = at.lr,
          .micro_batch = at.micro_batch,
          .pass = at.pass,
          .training = at.training};
}

}  // namespace

void KeeperChain::whole_grads(ParamGroup& group, const HookContext& at) {
  const MemoryScope as(at.stream.device(), MemoryKind::gradients);
  const HookContext home = on_stream(group.grad_stream, at);
  each("whole_grads", [&](Keeper& keeper) { keeper.whole_grads(group, home); });
}

void KeeperChain::weight_ready(ParamGroup& group, Change why, const HookContext& at) {
  const MemoryScope as(at.stream.device(), MemoryKind::weights);
  const HookContext home = on_stream(group.state_stream, at);
  each("weight_ready", [&](Keeper& keeper) { keeper.weight_ready(group, why, home); });
}

void KeeperChain::after_step(ParamGroup& group, Change why, const HookContext& at) {
  const MemoryScope as(at.stream.device(), MemoryKind::weights);
  each("after_step", [&](Keeper& keeper) { keeper.after_step(group, why, at); });
}

void KeeperChain::settle(ParamGroup& group, bool keep, const HookContext& at) {
  each("settle", [&](Keeper& keeper) { keeper.settle(group, keep, at); });
}

void KeeperChain::finish_updates(const HookContext& at) {
  each("finish_updates", [&](Keeper& keeper) { keeper.finish_updates(at); });
}

std::int64_t KeeperChain::disk_bytes() const {
  std::int64_t bytes = 0;
  for (const Link& link : links_) {
    bytes += link.keeper->disk_bytes();
  }
  return bytes;
}

HookContext hook_context(const StepContext& ctx, Pass pass) {
  return {.stream = ctx.stream,
          .step = static_cast<std::int64_t>(ctx.step),
          .lr = ctx.lr,
          .micro_batch = ctx.micro_batch,
          .pass = pass,
          .training = ctx.training};
}

void KeeperChain::add_metrics(std::map<std::string, double>& to) {
  for (const Link& link : links_) {
    std::map<std::string, double> own;
    named(link.plugin, "metrics", [&] { link.keeper->metrics(own); });
    for (const auto& [key, value] : own) {
      to[link.plugin + "." + key] = value;
    }
  }
}

}  // namespace orthant
