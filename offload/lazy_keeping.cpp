// OffloadKeeper's updates of experts that are put off.
#include <orthant/weight_average.h>

#include <algorithm>

#include "keeper.h"

namespace orthant::offload {

void OffloadKeeper::refuse_lazy(const ParamGroup& group) const {
  const auto refuse = [](const std::string& why) {
    throw SettingError("plugins.offload.expert_states", "expert_states = \"lazy\": " + why);
  };
  if (group.owned_elements < group.padded) {
    refuse(
        fmt::format("ranks share out the states of '{}', so none can make up for an expert's updates alone\nwrite "
                    "zero = 0, or an expert axis as large as the data axis",
                    group.name));
  }
  const OptimizerSettings& how = settings_.optimizer;
  if (how.master_weights == MasterWeights::none || how.state_dtype != StateType::fp32) {
    refuse(
        "an update that is put off is rounded once, where each step would have rounded\nwrite expert_states = "
        "\"eager\", or master_weights = \"fp32\" and state_dtype = \"fp32\"");
  }
  const Optimizer& optimizer = settings_.catalogue->get<Optimizer>(settings_.optimizer.name);
  for (const Param& p : group.params) {
    if (!optimizer.treatment(p.spec, settings_.optimizer).replays) {
      refuse(
          fmt::format("the optimizer \"{}\" cannot make up for updates of '{}' later\nwrite optimizer.name = "
                      "\"adamw\" or \"sgd\"",
                      settings_.optimizer.name, p.spec.name));
    }
  }
}

// On every rank, also where nothing is to be agreed on: groups are made in one order everywhere.
void OffloadKeeper::sum_group(Mesh& mesh, Group& sum) {
  if (places_.lazy_experts) {
    together_[&sum] = &mesh.group_of("chosen experts", {sum.members().begin(), sum.members().end()});
  }
}

// Chosen on one rank, chosen on all that hold the same experts: there the gradient is not zero either.
void OffloadKeeper::agree_on_chosen(Kept& of, Stream& s) {
  const ParamGroup& group = *of.group;
  if (group.sum->size() == 1) {
    return;
  }
  std::vector<std::int64_t> chosen(of.lazy->experts());
  for (std::size_t e = 0; e < chosen.size(); ++e) {
    chosen[e] = of.lazy->is_chosen(e) ? 1 : 0;
  }
  const Tensor counts = lanes_->device.empty(DType::i64, {static_cast<std::int64_t>(chosen.size())});
  s.upload(counts, chosen.data());
  together_.at(group.sum)->all_reduce(counts, ReduceOp::sum, s);
  s.download(chosen.data(), counts);
  for (std::size_t e = 0; e < chosen.size(); ++e) {
    if (chosen[e] > 0 && !of.lazy->is_chosen(e)) {
      of.lazy->set_chosen(e);
      catch_up(of, e, s);
    }
  }
}

// Before their rows are computed.
void OffloadKeeper::make_up_for(Kept& of, std::span<const std::int64_t> rows, const HookContext& at) {
  if (at.training) {
    of.lazy->chosen(rows);
  }
  for (std::size_t e = 0; e < rows.size(); ++e) {
    if (rows[e] > 0) {
      catch_up(of, e, at.stream);
    }
  }
}

void OffloadKeeper::catch_up_all(Kept& of, Stream& s) {
  for (std::size_t e = 0; e < of.lazy->experts(); ++e) {
    catch_up(of, e, s);
  }
}

// The experts that were not chosen miss a step. None misses more than some hundred: the list would grow for ever.
void OffloadKeeper::end_lazy_step(Kept& of, const HookContext& at) {
  constexpr std::size_t most_missed = 500;
  of.lazy->end_step({at.step, at.lr});
  of.lazy->begin_step();
  of.counted = false;
  if (of.lazy->longest() >= most_missed) {
    catch_up_all(of, at.stream);
    of.lazy->forget();
  }
}

// Without gradients. Weights beside states in the host's memory have memory of their own, in bf16.
UpdateSlice OffloadKeeper::slice_of(Kept& of, const Treatment& treatment, const ParamGroup::Run& run) const {
  const ParamGroup& group = *of.group;
  const bool on_host = group.away.state;
  UpdateSlice slice{.master = (on_host ? of.master->open() : group.master).slice(run.begin, {run.count}),
                    .weight = {},
                    .grad = {},
                    .state = {},
                    .whole = {}};
  if (!on_host) {
    slice.weight = group.owned_weight.slice(run.begin, {run.count});
  } else {
    slice.weight = full_precision() ? slice.master : lanes_->device.host_empty(DType::bf16, {run.count});
  }
  for (const OptimizerState& spec : treatment.states) {
    slice.state.push_back(state_of(of, spec.name, run));
  }
  return slice;
}

Tensor OffloadKeeper::state_of(Kept& of, const std::string& name, const ParamGroup::Run& run) const {
  const ParamGroup& group = *of.group;
  const auto state =
      std::find_if(group.states.begin(), group.states.end(), [&](const ParamState& s) { return s.name == name; });
  const std::int64_t at = state->place(run.begin, run.count);
  const Tensor values =
      group.away.state ? of.states[static_cast<std::size_t>(state - group.states.begin())].open() : state->values;
  return values.slice(at, {run.count});
}

// The average of the weights needs those of each step.
void OffloadKeeper::replay(Kept& of, const UpdateSlice& slice, const ParamGroup::Run& run,
                           std::span<const UpdateStep> missed, Stream& home) const {
  const Optimizer& optimizer = settings_.catalogue->get<Optimizer>(settings_.optimizer.name);
  if (settings_.optimizer.ema_decay == 0) {
    optimizer.replay(slice, missed, home);
    return;
  }
  const Tensor average = state_of(of, average_state, run);
  const Tensor finite = slice.master.on_host() ? lanes_->device.host_empty(DType::f32, {1}) : empty(DType::f32, 1);
  home.fill(finite, 1);
  for (std::size_t i = 0; i < missed.size(); ++i) {
    optimizer.replay(slice, missed.subspan(i, 1), home);
    move_average(average, slice.master, finite, settings_.optimizer, missed[i].step, home);
  }
}

// Replays what the expert has missed, and brings its weights where layers read them.
void OffloadKeeper::catch_up(Kept& of, std::size_t expert, Stream& s) {
  const std::span<const PastStep> missed = of.lazy->missed(expert);
  if (missed.empty()) {
    return;
  }
  const ParamGroup& group = *of.group;
  Stream& home = group.away.state ? *lanes_->host : s;
  const Optimizer& optimizer = settings_.catalogue->get<Optimizer>(settings_.optimizer.name);
  for (const ExpertRun& run : of.lazy->runs(expert)) {
    const ParamSpec& spec = group.params[run.param].spec;
    if (spec.frozen) {
      continue;
    }
    const Treatment treatment = optimizer.treatment(spec, settings_.optimizer);
    const UpdateSlice slice = slice_of(of, treatment, run.elements);
    std::vector<UpdateStep> steps;
    for (const PastStep& past : missed) {
      steps.push_back({.settings = settings_.optimizer,
                       .step = past.step,
                       .lr = past.lr * spec.lr_scale,
                       .weight_decay = spec.decay ? settings_.optimizer.weight_decay : 0.0,
                       .method = treatment.method,
                       .factor = {},
                       .finite = {}});
    }
    replay(of, slice, run.elements, steps, home);
    if (group.away.state) {
      lanes_->up->wait(s.record());
      up(group.owned_weight.slice(run.elements.begin, {run.elements.count}), slice.weight, home.record());
    }
  }
  if (group.away.state) {
    s.wait(lanes_->up->record());
  }
  of.lazy->caught_up(expert);
}

}  // namespace orthant::offload
