#include "core/train/optimizer_step.h"

#include <algorithm>

#include <orthant/learning_rate.h>
#include <orthant/weight_average.h>

#include "core/layers/parameter_state.h"
#include "core/layers/state_storage.h"
#include "core/plan/keeper_chain.h"
#include "core/train/low_memory_update.h"

namespace orthant {

void Optimizer::prepare(const Tensor&, const UpdateSlice&, const UpdateStep&, Stream&) const {
  fail("this optimizer asks for whole parameters (Treatment::whole) and has no `prepare`");
}
void Optimizer::transform(const Tensor&, const UpdateStep&, Stream&) const {
  fail("this optimizer asks for whole parameters (Treatment::whole) and has no `transform`");
}

void Optimizer::measure(std::span<const Tensor>, const UpdateSlice&, const UpdateStep&, int, Stream&) const {
  fail("this optimizer says what it measures (Treatment::measures) and has no `measure`");
}
void Optimizer::fold(const UpdateSlice&, const UpdateStep&, int, Stream&) const {}

void Optimizer::replay(const UpdateSlice&, std::span<const UpdateStep>, Stream&) const {
  fail("this optimizer says that it replays updates (Treatment::replays) and has no `replay`");
}

double learning_rate(const Settings& settings, std::int64_t step) {
  const OptimizerSettings& o = settings.optimizer;
  if (step < o.warmup_steps) {
    return o.lr * (static_cast<double>(step) + 1) / (static_cast<double>(o.warmup_steps) + 1);
  }
  return settings.catalogue->get<LearningRate>(o.schedule).rate(o, settings.run.steps, step);
}

OptimizerStep::OptimizerStep(Plan& plan, ParamStore& store, Stream& stream)
    : plan_(plan),
      store_(store),
      stream_(stream),
      optimizer_(optimizer_of(plan.settings())),
      whole_(plan, store, stream),
      measured_(plan, store, stream) {
  for (const auto& group : store.groups()) {
    parts_.push_back(parts_of(*group));
  }
  begin_step();
}

std::vector<OptimizerStep::Part> OptimizerStep::parts_of(const ParamGroup& group) const {
  std::vector<Part> parts;
  const std::int64_t owned_end = group.owned_begin + group.owned_elements;
  for (const Param& p : group.params) {
    Treatment treatment = treatment_of(p.spec, plan_.settings());
    if (p.spec.frozen || !treatment.measures.empty()) {  // MeasuredUpdates
      continue;
    }
    Part part{.treatment = std::move(treatment),
              .decay = p.spec.decay,
              .lr_scale = p.spec.lr_scale,
              .whole = whole_.find(group, p)};
    const std::int64_t begin = std::max(p.begin, group.owned_begin);
    part.begin = begin - group.owned_begin;
    part.count = std::max<std::int64_t>(std::min(p.begin + p.elements(), owned_end) - begin, 0);
    Part* last = parts.empty() ? nullptr : &parts.back();
    const bool alike = last != nullptr && last->whole == nullptr && part.whole == nullptr &&
                       last->treatment == part.treatment && last->decay == part.decay &&
                       last->lr_scale == part.lr_scale && last->begin + last->count == part.begin;
    if (alike && part.count > 0) {
      last->count += part.count;
    } else if (!alike && (part.count > 0 || part.whole != nullptr)) {
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

UpdateSlice OptimizerStep::slice_of(const ParamGroup& group, const Part& part, Stream& home) const {
  const Shape n{part.count};
  UpdateSlice slice{.master = group.master.slice(part.begin, n),
                    .weight = group.owned_weight.slice(part.begin, n),
                    .grad = in_f32(group.owned_grad.slice(part.begin, n), home),
                    .state = {},
                    .whole = {}};
  for (const OptimizerState& spec : own_states(part.treatment)) {
    slice.state.push_back(state_of(group, spec.name, part.begin, part.count).slice(part.begin, part.count));
  }
  return slice;
}

// prepared: f32, flat, of this rank's whole slice of the parameter.
void OptimizerStep::update_whole(const ParamGroup& group, const Part& part, const UpdateStep& step,
                                 const Tensor& prepared) {
  if (!part.whole->needed) {
    return;
  }
  const Tensor whole = whole_.gather_slices(*part.whole, prepared, stream_);
  if (part.count == 0) {
    return;  // took part for those that own some of it
  }
  optimizer_.transform(whole, step, stream_);
  UpdateSlice slice = slice_of(group, part, stream_);
  const Param& p = *part.whole->param;
  const std::int64_t first = group.owned_begin + part.begin - p.begin;
  slice.whole = whole_.own_slice(*part.whole, whole, stream_).slice(first, {part.count});
  optimizer_.update(slice, step, stream_);
}

namespace {

// What is left of [begin, begin + count) without the runs that are put off, which are in order.
std::vector<ParamGroup::Run> due(std::int64_t begin, std::int64_t count, const std::vector<ParamGroup::Run>& put_off) {
  std::vector<ParamGroup::Run> runs;
  const std::int64_t end = begin + count;
  for (const ParamGroup::Run& off : put_off) {
    if (off.begin >= end) {
      break;
    }
    if (off.begin > begin) {
      runs.push_back({begin, off.begin - begin});
    }
    begin = std::max(begin, off.end());
  }
  if (begin < end) {
    runs.push_back({begin, end - begin});
  }
  return runs;
}

}  // namespace

void OptimizerStep::update(ParamGroup& group, const UpdateStep& step, Stream& home) {
  const std::vector<Part>& parts = parts_[static_cast<std::size_t>(group.id)];
  const auto step_of = [&](const Part& part) {
    UpdateStep of = step;
    of.lr = step.lr * part.lr_scale;
    of.weight_decay = part.decay ? step.settings.weight_decay : 0.0;
    of.method = part.treatment.method;
    return of;
  };
  measured_.update(group, step, home);
  // Where ranks share a group out, what they prepare is gathered at once for all of its parameters.
  Tensor prepared;
  if (whole_.shared_out(group)) {
    prepared = whole_.begin_group(group, stream_);
    for (const Part& part : parts) {
      if (part.whole != nullptr && part.count > 0) {
        optimizer_.prepare(prepared.slice(group.owned_begin + part.begin, {part.count}), slice_of(group, part, stream_),
                           step_of(part), stream_);
      }
    }
    whole_.end_group(group, prepared, stream_);
  }
  for (const Part& part : parts) {
    if (part.whole == nullptr) {
      const bool narrow = stored_in_fewer_bits(group, part.treatment);
      for (const ParamGroup::Run& run : due(part.begin, part.count, group.put_off)) {
        if (narrow) {
          update_low_memory(group, run.begin, run.count, part.treatment, step_of(part), plan_.settings(), home);
          continue;
        }
        Part of = part;
        of.begin = run.begin;
        of.count = run.count;
        optimizer_.update(slice_of(group, of, home), step_of(part), home);
      }
      continue;
    }
    require(&home == &stream_, "'{}': a parameter that the optimizer wants whole is updated on the device", group.name);
    const Param& p = *part.whole->param;
    if (prepared.defined()) {
      update_whole(group, part, step_of(part), prepared.slice(p.begin, {p.elements()}));
    } else {
      const Tensor own = plan_.device().empty(DType::f32, {p.elements()});
      optimizer_.prepare(own, slice_of(group, part, stream_), step_of(part), stream_);
      update_whole(group, part, step_of(part), own);
    }
  }
}

void OptimizerStep::move_averages(const ParamGroup& group, const Tensor& finite, std::int64_t step,
                                  Stream& home) const {
  const ParamState* const average = average_of(group);
  const MemoryScope as(plan_.device(), MemoryKind::work);
  const OptimizerSettings& how = plan_.settings().optimizer;
  for (const ParamState::Run& kept : average->runs) {
    for (const ParamGroup::Run& run : due(kept.begin, kept.count, group.put_off)) {
      const Tensor to = average->values.slice(kept.at + run.begin - kept.begin, {run.count});
      const Tensor weights = group.master.slice(run.begin, {run.count});
      if (weights.dtype() == DType::f32) {
        move_average(to, weights, finite, how, step, home);
        continue;
      }
      for (std::int64_t at = 0; at < run.count; at += most_widened) {
        const Shape n{std::min(most_widened, run.count - at)};
        const Tensor wide =
            to.on_host() ? plan_.device().host_empty(DType::f32, n) : plan_.device().empty(DType::f32, n);
        home.cast(wide, weights.slice(at, n));
        move_average(to.slice(at, n), wide, finite, how, step, home);
      }
    }
  }
}

UpdateStep OptimizerStep::step_with(const Tensor& factor, const Tensor& finite, const HookContext& at) const {
  return {.settings = plan_.settings().optimizer, .step = at.step, .lr = at.lr, .factor = factor, .finite = finite};
}

void OptimizerStep::begin_step() {
  progress_.assign(parts_.size(), Progress::none);
}

const OptimizerStep::Scalars& OptimizerStep::scalars_of(Stream& home) {
  const auto [place, is_new] = scalars_.try_emplace(&home);
  Scalars& scalars = place->second;
  if (is_new) {
    const auto empty = [&](DType dtype) {
      return &home == &stream_ ? plan_.device().empty(dtype, {1}) : plan_.device().host_empty(dtype, {1});
    };
    scalars = {empty(DType::f64), empty(DType::f32), empty(DType::f32)};
    home.fill(scalars.one, 1);
  }
  return scalars;
}

Stream& OptimizerStep::begin(ParamGroup& group, const HookContext& at) {
  const MemoryScope as(plan_.device(), MemoryKind::work);
  plan_.keepers().acquire(group, Held::state, at);
  Stream& home = home_of(group, Held::state, at);
  const Scalars& own = scalars_of(home);
  home.fill(own.squares, 0);
  home.sum_squares(own.squares, group.owned_grad);
  home.clip_factor(own.factor, own.squares, own.squares, 0);
  update(group, step_with(own.factor, own.factor, at), home);
  return home;
}

// Another group's update may stand between, with a factor of its own: where that is not finite the run ends, and nobody
// goes on with these averages.
void OptimizerStep::finish(ParamGroup& group, const HookContext& at) {
  plan_.keepers().weight_ready(group, Change::updated, at);
  if (average_of(group) != nullptr) {
    Stream& home = home_of(group, Held::state, at);
    move_averages(group, scalars_of(home).factor, at.step, home);
  }
  plan_.keepers().after_step(group, Change::updated, at);
  plan_.keepers().release(group, Held::state, at);
  store_.drop_grad(group);
  progress_[static_cast<std::size_t>(group.id)] = Progress::updated;
}

void OptimizerStep::attempt(ParamGroup& group, const HookContext& at) {
  const MemoryScope as(plan_.device(), MemoryKind::work);
  with_held(plan_.keepers(), group, Held::trial, at, [&](Stream& home) {
    const Tensor& one = scalars_of(home).one;
    update(group, step_with(one, one, at), home);
  });
  progress_[static_cast<std::size_t>(group.id)] = Progress::tried;
}

void OptimizerStep::apply(const Tensor& factor, const Tensor& finite, const HookContext& at) {
  const MemoryScope as(plan_.device(), MemoryKind::work);
  const UpdateStep on_device = step_with(factor, finite, at);
  UpdateStep on_host = on_device;
  std::shared_ptr<Event> copied;  // the factors are in the host's memory
  const auto step_on = [&](Stream& home) {
    if (&home == &stream_) {
      return on_device;
    }
    if (copied == nullptr) {
      on_host.factor = plan_.device().host_empty(DType::f32, {1});
      on_host.finite = plan_.device().host_empty(DType::f32, {1});
      stream_.download(on_host.factor, factor);
      stream_.download(on_host.finite, finite);
      copied = stream_.record();
    }
    home.wait(copied);
    return on_host;
  };
  bool keep = false;  // what was tried
  if (std::find(progress_.begin(), progress_.end(), Progress::tried) != progress_.end()) {
    float value = 0;
    stream_.download(&value, factor);
    keep = value == 1.0f;
  }
  for (auto& group : store_.groups()) {
    const Progress progress = progress_[static_cast<std::size_t>(group->id)];
    if (progress == Progress::updated || group->frozen) {
      continue;
    }
    if (progress == Progress::tried) {
      plan_.keepers().settle(*group, keep, at);
    }
    with_held(plan_.keepers(), *group, Held::state, at, [&](Stream& home) {
      if (progress == Progress::none || !keep) {
        update(*group, step_on(home), home);
      }
      plan_.keepers().weight_ready(*group, Change::updated, at);
      if (average_of(*group) != nullptr) {
        move_averages(*group, step_on(home).finite, at.step, home);
      }
      plan_.keepers().after_step(*group, Change::updated, at);
    });
    store_.drop_grad(*group);
  }
  plan_.keepers().finish_updates(at);
}

}  // namespace orthant
