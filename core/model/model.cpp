#include "core/model/model.h"

#include <orthant/objective.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "core/arch/links.h"
#include "core/layers/head.h"
#include "core/layers/wanted_gradients.h"
#include "core/plan/groups.h"
#include "core/plan/keeper_chain.h"

namespace orthant {

Model::Model(Plan& plan, Stream& stream, bool begin)
    : parameters_(plan, stream, begin),
      adapters_(parameters_, plan.settings()),
      links_(plan.links()),
      head_(head_of(links_).number) {
  const Settings& settings = plan.settings();
  const ModelKind& kind = model_kind(settings);
  // Made on every rank, whether its stage has a layer that uses them or not.
  std::vector<GroupSpec> groups = groups_of_layers(plan, objective_of(settings).over_sequences(settings));
  std::ranges::move(kind.groups(plan), std::back_inserter(groups));
  for (const GroupSpec& group : groups) {
    plan.group(group);
  }
  places_.resize(links_.size());
  for (const Link& link : links_) {
    if (plan.holds_layer(link.number)) {
      Place& place = places_[static_cast<std::size_t>(link.number)];
      place.layer = kind.make(link, parameters_, plan);
      require(place.layer != nullptr, "model kind '{}' makes no layer for {}", settings.model.kind, told(link));
      place.groups = parameters_.groups_of_layer(link.number);
    }
  }
}

const Model::Place& Model::place(int number) const {
  const Place& found = places_.at(static_cast<std::size_t>(number));
  require(found.layer != nullptr, "layer {} is on another stage", number);
  return found;
}

namespace {

void fill_all_but(const Param* left, const ParamGroup& group, Stream& s) {
  const std::int64_t begin = left != nullptr ? left->begin : group.grad.elements();
  const std::int64_t end = left != nullptr ? begin + left->elements() : begin;
  for (const auto& [first, last] : {std::pair{std::int64_t{0}, begin}, std::pair{end, group.grad.elements()}}) {
    if (last > first) {
      s.fill(group.grad.slice(first, {last - first}), 0);
    }
  }
}

}  // namespace

void Model::acquire(const StepContext& ctx, int number, Pass pass) {
  for (ParamGroup* group : place(number).groups) {
    ctx.plan.keepers().acquire(*group, Held::weight, hook_context(ctx, pass));
  }
  adapters_.merge(number, ctx);
}

// Gradients that nothing was added to yet are zero; those of routed experts, and what a layer says that it overwrites,
// stay as they are instead. Those of a frozen group begin anew in every pass: none outlives it. Where nobody wants any,
// embedding, head and routed experts have none; the parts of a block, which plugins may bring, always have a place for
// theirs.
void Model::acquire_grads(const StepContext& ctx, int number, const std::vector<ParamGroup*>& groups, Pass pass) {
  for (ParamGroup* group : groups) {
    const int layer = group->params.front().spec.layers.front();
    const bool of_block = links_[static_cast<std::size_t>(layer)].block >= 0;  // others may use its parameters, too
    if ((group->experts || !of_block) && !wants_gradients(*group)) {
      continue;
    }
    parameters_.make_grad(*group, ctx.stream);
    if (group->frozen) {
      group->grad_empty = true;
    } else {
      ctx.plan.keepers().acquire(*group, Held::grad, hook_context(ctx, pass));
      wide_.widen(*group, ctx.device());
    }
    if (group->grad_empty && !group->experts) {
      const ParamRef* overwritten = pass == Pass::forward ? place(number).layer->overwritten() : nullptr;
      const bool has_it = overwritten != nullptr && &overwritten->group() == group;
      fill_all_but(has_it ? &overwritten->param() : nullptr, *group, ctx.stream);
      group->grad_empty = has_it;
    }
  }
}

// groups: those of the layer whose gradients were acquired.
void Model::release(const StepContext& ctx, int number, const std::vector<ParamGroup*>& groups, Pass pass) {
  adapters_.restore(number);
  for (ParamGroup* group : place(number).groups) {
    const bool grads = std::find(groups.begin(), groups.end(), group) != groups.end();
    if (grads && group->frozen) {
      parameters_.drop_grad(*group);
    } else if (grads) {
      ctx.plan.keepers().release(*group, Held::grad, hook_context(ctx, pass));
    }
    ctx.plan.keepers().release(*group, Held::weight, hook_context(ctx, pass));
  }
}

namespace {

// Work of the forward pass that stays for the backward pass; not what stays anyway, such as the batch.
void count_as_activations(const Saved& saved) {
  for (const Tensor& t : saved.tensors) {
    if (t.defined() && (t.storage()->kind() == MemoryKind::work || t.storage()->kind() == MemoryKind::exchange)) {
      t.storage()->set_kind(MemoryKind::activations);
    }
  }
}

// What a layer has made, against what its link says.
void check(const Bundle& made, const Link& link, const char* does) {
  require(made.size() == link.passes.size(), "{} {} {} tensors: its link has {} slots", told(link), does, made.size(),
          link.passes.size());
  std::map<int, std::int64_t> rows;  // of each token space
  for (std::size_t i = 0; i < made.size(); ++i) {
    const Slot& slot = link.passes[i];
    const std::int64_t expected = rows.try_emplace(slot.space, made[i].defined() ? made[i].dim(0) : 0).first->second;
    require(made[i].defined() && made[i].shape().rank() == 2 && made[i].dim(1) == slot.columns &&
                made[i].dim(0) == expected && made[i].dtype() == slot.dtype,
            "{} {} '{}': expected {} [{}, {}], found {} {}", told(link), does, slot.name, name_of(slot.dtype), expected,
            slot.columns, made[i].defined() ? name_of(made[i].dtype()) : "nothing",
            made[i].defined() ? made[i].shape() : Shape{});
  }
}

// What the routers of these layers have counted joins the step's sums.
void add_counts(const StepContext& ctx, const std::vector<Link>& links, int first, int last) {
  const int begin = routed_before(links, first), count = routed_before(links, last) - begin;
  if (count > 0) {
    ctx.stream.add(ctx.sums.choices.rows(begin, count), ctx.sums.counts.rows(begin, count));
  }
}

}  // namespace

Bundle Model::forward(const StepContext& ctx, Bundle x, int first, int last) {
  for (int i = first; i < last; ++i) {
    Layer& here = *place(i).layer;
    const std::vector<ParamGroup*> grown = ctx.training ? here.grown_in_forward() : std::vector<ParamGroup*>();
    acquire(ctx, i, Pass::forward);
    acquire_grads(ctx, i, grown, Pass::forward);
    Saved saved;
    x = here.forward(ctx, x, saved);
    check(x, links_[static_cast<std::size_t>(i)], "passes on");
    adapters_.add_gradients(i, grown, ctx);
    for (ParamGroup* group : grown) {
      wide_.round(*group, ctx.stream);
      group->grad_empty = group->grad_empty && group->experts;
    }
    if (ctx.training) {
      count_as_activations(saved);
      ctx.plan.stash().put(i, ctx.micro_batch, std::move(saved), ctx.stream);
    }
    release(ctx, i, grown, Pass::forward);
  }
  if (ctx.training) {
    add_counts(ctx, links_, first, last);
  }
  return x;
}

HeadLayer& Model::head_layer() const {
  auto* const found = dynamic_cast<HeadLayer*>(place(head_).layer.get());
  require(found != nullptr, "{} is not as a decoder's: nobody else can ask it for logits",
          told(links_[static_cast<std::size_t>(head_)]));
  return *found;
}

Tensor Model::logits(const StepContext& ctx, const Tensor& x) {
  hold_head(ctx);
  Saved unused;
  const Tensor y = head_layer().logits(ctx, x, unused);
  release_head(ctx);
  return y;
}

Tensor Model::head_input(const StepContext& ctx, const Tensor& x) {
  Saved unused;
  return head_layer().normed(ctx, x, unused);
}

Tensor Model::head_logits(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) {
  return head_layer().logits_of(ctx, n, begin, rows);
}

Bundle Model::backward(const StepContext& ctx, Bundle dy, int first, int last, bool last_micro_batch,
                       BackwardListener* listener) {
  for (int i = last - 1; i >= first; --i) {
    const auto& [here, groups] = place(i);
    if (listener != nullptr) {
      listener->layer_begins();
    }
    acquire(ctx, i, Pass::backward);
    acquire_grads(ctx, i, groups, Pass::backward);
    Saved saved = ctx.plan.stash().take(i, ctx.micro_batch, ctx.stream);
    dy = here->backward(ctx, dy, saved);
    if (i > 0) {
      check(dy, links_[static_cast<std::size_t>(i - 1)], "gets back");
    }
    adapters_.add_gradients(i, groups, ctx);
    for (ParamGroup* group : groups) {
      wide_.round(*group, ctx.stream);
      group->grad_empty = false;
      if (group->layer == i && !group->frozen && (last_micro_batch || group->sum_each)) {
        ctx.plan.keepers().gradients_ready(*group, hook_context(ctx, Pass::backward));
      }
    }
    release(ctx, i, groups, Pass::backward);
    for (ParamGroup* group : groups) {
      if (listener != nullptr && last_micro_batch && group->layer == i && !group->frozen) {
        listener->complete(*group);
      }
    }
  }
  return dy;
}

std::vector<StashCall> stash_calls(const Plan& plan, std::span<const Instr> program) {
  std::vector<StashCall> calls;
  for (const Instr& instr : program) {
    if (instr.op != Op::forward && instr.op != Op::backward) {
      continue;
    }
    const auto [first, last] = plan.layers_of_chunk(instr.chunk);
    for (int i = 0; i < last - first; ++i) {
      const bool put = instr.op == Op::forward;
      calls.push_back(
          {put ? StashCall::Kind::put : StashCall::Kind::take, put ? first + i : last - 1 - i, instr.micro_batch});
    }
  }
  return calls;
}

void Model::begin_step() {
  wide_.drop();
  for (auto& group : parameters_.groups()) {
    group->summed = false;
    group->grad_empty = true;
  }
}

}  // namespace orthant
