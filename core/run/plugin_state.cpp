#include "core/run/plugin_state.h"

#include <algorithm>
#include <vector>

#include "core/layers/owned_pieces.h"
#include "core/plan/keeper_chain.h"

namespace orthant {
namespace {

constexpr const char* layout_key = "layout";

// "'residual' of plugin 'topk'", of "plugins/topk/residual".
std::string words_for(const std::string& state) {
  const std::size_t plugin = state.find('/') + 1, name = state.find('/', plugin) + 1;
  return fmt::format("'{}' of plugin '{}'", state.substr(name), state.substr(plugin, name - 1 - plugin));
}

// A rank's slice of a parameter, as one of `members` slices that add up.
SliceMeta summed_slice(const std::string& name, const Param& p, int member, int members) {
  SliceMeta meta{.name = name, .dtype = DType::f32, .global = {members}, .offset = {member}, .size = {1}};
  for (int i = 0; i < p.spec.global.rank(); ++i) {
    meta.global.push_back(p.spec.global[i]);
    meta.offset.push_back(p.offset[i]);
    meta.size.push_back(p.size[i]);
  }
  return meta;
}

SliceMeta rank_slice(const std::string& name, const PluginState& state) {
  SliceMeta meta{.name = name, .dtype = state.dtype, .global = state.shape, .offset = {}, .size = {}};
  for (int i = 0; i < state.shape.rank(); ++i) {
    meta.offset.push_back(0);
    meta.size.push_back(state.shape[i]);
  }
  return meta;
}

std::string rank_name(const PluginState& state, const ParamGroup& group, const Plan& plan) {
  return fmt::format("{}/rank {}/{}", state.name, plan.mesh().rank(), group.name);
}

class Loader {
 public:
  Loader(const CheckpointReader& reader, ParamGroup& group, const Plan& plan, Stream& stream,
         std::set<std::string>& notes)
      : reader_(reader), group_(group), plan_(plan), stream_(stream), notes_(notes) {
    const auto layout = reader.state().find(layout_key);
    same_layout_ = layout != reader.state().end() && layout->second == layout_text(plan);
  }

  void load(PluginState& state) {
    stream_.fill(state.tensor, 0);
    switch (state.kind) {
      case StateKind::owned: load_owned(state); break;
      case StateKind::summed: load_summed(state); break;
      case StateKind::per_rank: load_own(state); break;
    }
  }

 private:
  std::string name_of_state(const PluginState& state, const Param& p) const {
    return name_for_worker(reader_, plan_.mesh().worker(), state.name + "/" + p.spec.name);
  }

  bool has_all(const PluginState& state) {
    const bool all = std::all_of(group_.params.begin(), group_.params.end(),
                                 [&](const Param& p) { return reader_.has(name_of_state(state, p)); });
    if (!all) {
      notes_.insert(fmt::format("state {} is not in the checkpoint: it starts at zero", words_for(state.name)));
    }
    return all;
  }

  void load_owned(PluginState& state) {
    state.restored = has_all(state);
    for (const Param& p : group_.params) {
      for (const OwnedPiece& piece : state.restored ? owned_pieces(group_, p) : std::vector<OwnedPiece>()) {
        const std::string name = name_of_state(state, p);
        check(name, p.spec.global);
        std::vector<std::int64_t> offset, size;
        for (int i = 0; i < p.spec.global.rank(); ++i) {
          offset.push_back(piece.offset[i]);
          size.push_back(piece.size[i]);
        }
        host_.resize(piece.elements());
        reader_.read(name, offset, size, host_.data());
        stream_.upload(state.tensor.slice(piece.begin, {piece.elements()}), host_.data());
      }
    }
  }

  void load_summed(PluginState& state) {
    state.restored = has_all(state);
    const int rank = group_.sum->rank(), ranks = group_.sum->size();
    for (const Param& p : group_.params) {
      if (!state.restored) {
        return;
      }
      const std::string name = name_of_state(state, p);
      const Shape shape = reader_.info(name).shape;
      const int members = static_cast<int>(shape[0]);
      check(name, summed_slice(name, p, 0, members).global);
      const bool own = same_layout_ && members == ranks;
      if (!own) {
        notes_.insert(
            fmt::format("state {} is of another layout: the first of the ranks that it belongs to gets the sum",
                        words_for(state.name)));
      }
      if (!own && rank != 0) {
        continue;
      }
      std::vector<float> sum(p.elements(), 0.0f);
      host_.resize(sum.size());
      for (int member = own ? rank : 0; member < (own ? rank + 1 : members); ++member) {
        const SliceMeta slice = summed_slice(name, p, member, members);
        reader_.read(name, slice.offset, slice.size, host_.data());
        for (std::size_t i = 0; i < sum.size(); ++i) {
          sum[i] = own ? host_[i] : sum[i] + host_[i];
        }
      }
      stream_.upload(state.tensor.slice(p.begin, {p.elements()}), sum.data());
    }
  }

  void load_own(PluginState& state) {
    const std::string name = rank_name(state, group_, plan_);
    state.restored = same_layout_ && reader_.has(name) && reader_.info(name).shape == state.shape &&
                     reader_.info(name).dtype == state.dtype;
    if (!state.restored) {
      notes_.insert(fmt::format("state {} is of each rank alone, and the checkpoint has it {}: it starts at zero",
                                words_for(state.name),
                                same_layout_ ? "in another form, or not" : "for another layout"));
      return;
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(state.shape.elements()) * size_of(state.dtype));
    const SliceMeta slice = rank_slice(name, state);
    reader_.read(name, slice.offset, slice.size, bytes.data());
    stream_.upload(state.tensor, bytes.data());
  }

  void check(const std::string& name, const Shape& shape) const {
    const CheckpointReader::TensorInfo info = reader_.info(name);
    require(info.shape == shape && info.dtype == DType::f32, "the checkpoint's '{}' is {} {}, this plugin's is f32 {}",
            name, name_of(info.dtype), info.shape, shape);
  }

  const CheckpointReader& reader_;
  ParamGroup& group_;
  const Plan& plan_;
  Stream& stream_;
  std::set<std::string>& notes_;
  bool same_layout_ = false;
  std::vector<float> host_;
};

}  // namespace

std::string worker_prefix(int worker) {
  return worker == 0 ? "" : fmt::format("worker{}/", worker);
}

std::string name_for_worker(const CheckpointReader& reader, int worker, const std::string& name) {
  const std::string own = worker_prefix(worker) + name;
  return reader.has(own) ? own : name;
}

std::string layout_text(const Plan& plan) {
  std::string text;
  for (const AxisSpec& axis : plan.mesh().axes()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis.name, axis.size);
  }
  return fmt::format("{}; layers {}", text, fmt::join(plan.cut(), " "));
}

void add_plugin_states(CheckpointWriter& writer, ParamGroup& group, const Plan& plan, const HookContext& at) {
  const auto add = [&](const SliceMeta& slice, std::size_t state, std::int64_t begin, std::int64_t elements) {
    writer.add(slice, [&group, at, state, begin, elements](void* out) {
      const Tensor& all = group.plugin_states[state].tensor;
      at.stream.download(out, elements < 0 ? all : all.slice(begin, {elements}));
    });
  };
  for (std::size_t i = 0; i < group.plugin_states.size(); ++i) {
    const PluginState& state = group.plugin_states[i];
    if (state.kind == StateKind::per_rank) {
      add(rank_slice(rank_name(state, group, plan), state), i, 0, -1);
    }
    for (const Param& p : group.params) {
      if (state.kind == StateKind::summed && p.counted) {
        const std::string name = worker_prefix(plan.mesh().worker()) + state.name + "/" + p.spec.name;
        add(summed_slice(name, p, group.sum->rank(), group.sum->size()), i, p.begin, p.elements());
      }
    }
  }
}

void load_plugin_states(const CheckpointReader& reader, ParamGroup& group, const Plan& plan, Stream& stream,
                        std::set<std::string>& notes) {
  for (PluginState& state : group.plugin_states) {
    Loader(reader, group, plan, stream, notes).load(state);
  }
}

void note_unknown_states(const CheckpointReader& reader, const ParamStore& store, std::set<std::string>& notes) {
  for (const std::string& name : reader.names()) {
    const std::size_t at = name.starts_with("worker") ? name.find('/') + 1 : 0;
    if (name.compare(at, 8, "plugins/") != 0) {
      continue;
    }
    const std::size_t end = name.find('/', name.find('/', at + 8) + 1);
    const std::string state = name.substr(at, end - at);
    const bool known = std::any_of(store.groups().begin(), store.groups().end(), [&](const auto& group) {
      return std::any_of(group->plugin_states.begin(), group->plugin_states.end(),
                         [&](const PluginState& one) { return one.name == state; });
    });
    if (!known) {
      notes.insert(
          fmt::format("the checkpoint's state {} is left out: no plugin here has declared it", words_for(state)));
    }
  }
}

}  // namespace orthant
