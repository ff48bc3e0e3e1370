#include "zero_keeper.h"

#include <algorithm>

namespace orthant::data_plugin {

ZeroKeeper::ZeroKeeper(Device* device, const ZeroOptions& options) : device_(device), options_(options) {
  if (device != nullptr) {
    side_ = device->make_side_stream();
  }
}

void ZeroKeeper::sum_group(Mesh& mesh, Group& sum) {
  const int all = sum.size(), part = options_.shard_ranks;
  Ranks ranks;
  if (options_.stage > 0 && all > 1) {
    ranks.shards = &sum;
  }
  // Made by every rank, also where its own list is too short to be divided: a tied table has more ranks on the stages
  // that hold it, and groups are made in one order everywhere.
  if (options_.stage > 0 && part > 0) {
    if (part < all && all % part != 0) {
      throw SettingError("plugins.data.shard_ranks",
                         fmt::format("{} ranks sum a gradient and shard what belongs to it: they do not divide into "
                                     "parts of shard_ranks = {}",
                                     all, part));
    }
    std::vector<int> shards, replicas;
    for (int i = 0; i < all; ++i) {
      const int member = sum.members()[i];
      if (i / part == sum.rank() / part) {
        shards.push_back(member);
      }
      if (i % part == sum.rank() % part) {
        replicas.push_back(member);
      }
    }
    Group& shard_group = mesh.group_of("shards", shards);
    Group& replica_group = mesh.group_of("replicas of shards", replicas);
    if (part < all) {
      ranks.shards = &shard_group;
      ranks.replicas = &replica_group;
    }
  }
  ranks_[&sum] = ranks;
}

void ZeroKeeper::adopt(ParamGroup& group, Holding& holding) {
  Kept& of = kept_[group.id];
  of = {.group = &group, .ranks = ranks_.at(group.sum), .gathered = nullptr};
  if (of.ranks.shards == nullptr) {
    return;
  }
  const std::int64_t parts = of.ranks.shards->size();
  const std::int64_t units = parts * group.share_unit;
  holding.owned_elements = (group.elements + units - 1) / units * group.share_unit;
  holding.padded = holding.owned_elements * parts;
  holding.owned_begin = holding.owned_elements * of.ranks.shards->rank();
  holding.owner = of.ranks.replicas == nullptr || of.ranks.replicas->rank() == 0;
  // Ranks that meet at different times cannot wait for one another within a step.
  holding.whole_grad = options_.stage < 2 || group.scattered;
  holding.whole_weight = options_.stage < 3 || group.scattered || group.elements < options_.whole_below;
  holding.sum_each = !holding.whole_grad && !options_.layered;
}

// --- weights

// Starts to make `weight` from the shards.
void ZeroKeeper::gather(Kept& of, Stream& s) {
  ParamGroup& group = *of.group;
  group.weight = device_->empty(group.owned_weight.dtype(), {group.padded});
  side_->wait(s.record());
  of.ranks.shards->all_gather(group.weight, group.owned_weight, *side_);
  of.gathered = side_->record();
}

// The groups that are acquired next, to the end of this layer, or with prefetch of the next one.
std::vector<int> ZeroKeeper::soon(const ParamGroup& now) const {
  std::vector<int> ids;
  const int layers_ahead = options_.prefetch ? 1 : 0;
  int layer = now.layer, changes = 0;
  for (int id : order_.ahead()) {
    const int next = kept_.at(id).group->layer;
    changes += next != layer ? 1 : 0;
    layer = next;
    if (changes > layers_ahead) {
      break;
    }
    ids.push_back(id);
  }
  return ids;
}

void ZeroKeeper::acquire(ParamGroup& group, Held what, const HookContext& at) {
  if (what == Held::weight) {
    acquire_weight(group, at);
  } else if (what == Held::grad) {
    acquire_grad(group, at.stream);
  }
}

void ZeroKeeper::acquire_weight(ParamGroup& group, const HookContext& at) {
  Stream& s = at.stream;
  if (group.whole_weight) {
    return;
  }
  std::erase_if(idle_, [&](int id) {
    ParamGroup& other = *kept_.at(id).group;
    if (other.layer != group.layer) {
      other.weight = {};
    }
    return other.layer != group.layer || id == group.id;
  });
  Kept& of = kept(group);
  order_.acquired(group.id, at.training);
  if (!group.weight.defined()) {
    gather(of, s);
  }
  for (int id : soon(group)) {
    Kept& next = kept_.at(id);
    const bool changes = next.group->state_stream != nullptr;  // an early update has begun and not ended
    if (!next.group->weight.defined() && next.group->owned_weight.defined() && !changes) {
      gather(next, s);
    }
  }
  s.wait(of.gathered);
}

void ZeroKeeper::release(ParamGroup& group, Held what, const HookContext&) {
  if (what != Held::weight || group.whole_weight) {
    return;
  }
  if (order_.ahead().empty()) {
    idle_.push_back(group.id);
    return;
  }
  const std::vector<int> next = soon(group);
  if (std::find(next.begin(), next.end(), group.id) == next.end()) {
    group.weight = {};
  }
}

void ZeroKeeper::after_step(ParamGroup& group, Change, const HookContext& at) {
  Stream& s = at.stream;
  Kept& of = kept(group);
  if (of.ranks.shards == nullptr) {
    return;
  }
  if (!group.whole_weight) {
    group.weight = {};  // of before the update
    return;
  }
  side_->wait(s.record());
  of.ranks.shards->all_gather(group.weight, group.owned_weight, *side_);
  if (group.away.weight) {
    s.wait(side_->record());
  }
}

void ZeroKeeper::finish_updates(const HookContext& at) {
  at.stream.wait(side_->record());
}

// --- gradients

void ZeroKeeper::acquire_grad(ParamGroup& group, Stream& s) {
  if (group.whole_grad || group.grad.defined()) {
    return;
  }
  while (sums_.size() > 1) {  // no more than one other is in memory, waiting for its sum
    s.wait(sums_.front());
    sums_.pop_front();
  }
  group.grad = device_->empty(group.grad_dtype, {group.padded});
  if (group.padded > group.elements) {
    s.fill(group.grad.slice(group.elements, {group.padded - group.elements}), 0);
  }
}

void ZeroKeeper::sum_whole(ParamGroup& group) {
  for (std::int64_t begin = 0; begin < group.elements; begin += options_.bucket) {
    const std::int64_t n = std::min(options_.bucket, group.elements - begin);
    group.sum->all_reduce(group.grad.slice(begin, {n}), ReduceOp::sum, *side_);
  }
}

void ZeroKeeper::sum_shard(Kept& of) {
  ParamGroup& group = *of.group;
  // A first sum goes to its place, a further one to this rank's block of the whole gradient, to be added.
  const Tensor block = group.grad.slice(group.owned_begin, {group.owned_elements});
  const Tensor& to = of.summed_once ? block : group.owned_grad;
  of.ranks.shards->reduce_scatter(to, group.grad, ReduceOp::sum, *side_);
  if (of.ranks.replicas != nullptr) {
    of.ranks.replicas->all_reduce(to, ReduceOp::sum, *side_);
  }
  if (of.summed_once) {
    side_->add(group.owned_grad, block);
  }
  of.summed_once = !group.whole_grad;
}

bool ZeroKeeper::sum_grads(ParamGroup& group, const HookContext& at) {
  if (group.sum->size() == 1) {
    return false;
  }
  Kept& of = kept(group);
  if (group.scattered) {
    late_.push_back(group.id);
    return true;
  }
  side_->wait(at.stream.record());
  if (of.ranks.shards == nullptr) {
    sum_whole(group);
  } else {
    sum_shard(of);
  }
  group.sum_done = side_->record();
  if (!group.whole_grad) {
    group.grad = {};
    sums_.push_back(group.sum_done);
  }
  return true;
}

void ZeroKeeper::finish_sums(const HookContext& at) {
  Stream& s = at.stream;
  side_->wait(s.record());
  std::sort(late_.begin(), late_.end());  // the order of the model, on every rank
  for (int id : late_) {
    Kept& of = kept_.at(id);
    of.ranks.shards == nullptr ? sum_whole(*of.group) : sum_shard(of);
  }
  late_.clear();
  sums_.clear();
  for (auto& [id, of] : kept_) {
    of.summed_once = false;
  }
  order_.end_step();
  s.wait(side_->record());
}

}  // namespace orthant::data_plugin
