#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "apps/verify/verify.h"
#include "core/data/source.h"
#include "core/layers/parameter_state.h"
#include "core/plan/keeper_chain.h"
#include "core/run/loaded_teacher.h"
#include "core/session/session.h"
#include "core/train/whole_gradients.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

using Tensors = WholeTensors;

// Whether the part equals, bit for bit, what stands at its place.
bool same_piece(const std::vector<float>& global, const Shape& shape, const OwnedPiece& piece,
                const std::vector<float>& part) {
  const std::int64_t columns = shape.rank() > 1 ? shape[1] : 1;
  for (std::int64_t r = 0; r < piece.size[0]; ++r) {
    const float* there = global.data() + (piece.offset[0] + r) * columns + piece.offset[1];
    if (std::memcmp(there, part.data() + r * piece.size[1], static_cast<std::size_t>(piece.size[1]) * sizeof(float)) !=
        0) {
      return false;
    }
  }
  return true;
}

std::vector<float> to_host(const StatePiece& part, Stream& stream) {
  if (part.dtype() != DType::f32) {
    return to_host(part.values, stream);
  }
  std::vector<float> host(part.piece.elements());
  part.download(host.data(), stream);
  return host;
}

// The weights as layers read them, by name: each rank's slices, whole. Collective over the world.
std::map<std::string, std::vector<float>> weights_in_use(Trainer& trainer, const Plan& plan, Stream& stream) {
  std::map<std::string, std::vector<float>> found;
  for (const auto& group : trainer.parameters().groups()) {
    const HookContext at{.stream = stream, .training = false};
    plan.keepers().acquire(*group, Held::weight, at);
    const Tensor values = plan.device().empty(DType::f32, {group->elements});
    stream.cast(values, group->weight.slice(0, {group->elements}));
    for (const Param& p : group->params) {
      std::vector<float>& host = found[p.spec.name];
      host.resize(p.elements());
      stream.download(host.data(), values.slice(p.begin, {p.elements()}));
    }
    plan.keepers().release(*group, Held::weight, at);
  }
  return found;
}

OwnedPiece whole_slice(const Param& p) {
  return {.offset = {p.offset[0], p.offset[1]}, .size = {p.size[0], p.size[1]}, .begin = p.begin};
}

// One rank: trains and contributes its slices to the shared snapshot.
void run_rank(const Config& config, int steps, Halves halves, Communicator& communicator, Snapshot& snapshot,
              std::mutex& mutex) {
  const std::unique_ptr<Device> device = make_device(config.settings.run.device, 1, config.settings.run.deterministic);
  const std::unique_ptr<Stream> stream = device->make_main_stream();
  const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
  Session session(config);
  session.plan(communicator.rank(), &communicator, device.get());
  KeeperChain& keepers = session.plan().keepers();
  const bool first_worker = session.mesh().worker() == 0;  // the others' weights are of other models
  Group& world = session.mesh().world_group("verify");
  const std::unique_ptr<Teacher> teacher = loaded_teacher(config, communicator, *device, *stream);
  Trainer trainer(session.plan(), *stream, *source, teacher.get());
  for (int step = 0; step < steps; ++step) {
    if (halves == Halves::together) {
      const StepReport report = trainer.step(step);
      if (communicator.rank() == 0) {
        snapshot.reports.push_back(report);
      }
      continue;
    }
    const StepReport report = trainer.gradients(step);
    stream->synchronize();  // here and below: no rank waits for others while it has the mutex
    {
      const std::lock_guard lock(mutex);
      if (communicator.rank() == 0) {
        snapshot.reports.push_back(report);
      }
      add_gradients(trainer, keepers, *stream, step, first_worker, snapshot.gradients[step]);
    }
    trainer.apply(step);
    stream->synchronize();
  }
  stream->synchronize();
  auto each_state = [&](auto&& visit) {
    const std::lock_guard lock(mutex);
    const HookContext at{.stream = *stream, .step = steps};
    for (const auto& group : trainer.parameters().groups()) {
      with_held(keepers, *group, Held::saved, at, [&](Stream& home) {
        for (const Param& p : group->params) {
          for (const StatePiece& part : first_worker ? state_pieces(*group, p) : std::vector<StatePiece>()) {
            const std::string kind = part.state.empty() ? "weight" : part.state;
            visit(*group, p, part, kind + "/" + p.spec.name, to_host(part, part.stream(*stream, home)));
          }
        }
      });
    }
  };
  each_state([&](const ParamGroup& group, const Param& p, const StatePiece& part, const std::string& name,
                 const std::vector<float>& values) {
    if (p.counted && group.owner) {
      place_piece(snapshot.state[name], part.global, part.piece, values);
    }
  });
  auto each_gate_state = [&](auto&& visit) {
    const std::lock_guard lock(mutex);
    for (const GateState& state : trainer.parameters().gate_states()) {
      if (!first_worker) {
        continue;
      }
      std::vector<float> host(state.value.elements());
      stream->download(host.data(), state.value);
      visit(state, std::move(host));
    }
  };
  each_gate_state([&](const GateState& state, std::vector<float> values) {
    if (state.written) {
      snapshot.state[state.name] = std::move(values);
    }
  });
  const auto in_use = weights_in_use(trainer, session.plan(), *stream);
  auto each_weight = [&](auto&& visit) {
    const std::lock_guard lock(mutex);
    for (const auto& group : trainer.parameters().groups()) {
      for (const Param& p : group->params) {
        if (!first_worker) {
          continue;
        }
        visit(*group, p, snapshot.weights_in_use[p.spec.name], in_use.at(p.spec.name));
      }
    }
  };
  each_weight([&](const ParamGroup& group, const Param& p, std::vector<float>& global, const std::vector<float>& part) {
    if (p.counted && group.sum->rank() == 0) {
      place_piece(global, p.spec.global, whole_slice(p), part);
    }
  });
  world.barrier(*stream);
  stream->synchronize();
  each_weight([&](const ParamGroup&, const Param& p, std::vector<float>& global, const std::vector<float>& part) {
    if (!same_piece(global, p.spec.global, whole_slice(p), part)) {
      snapshot.replica_differences.push_back(
          fmt::format("weight in use/{} on rank {}", p.spec.name, communicator.rank()));
    }
  });
  each_state([&](const ParamGroup&, const Param&, const StatePiece& part, const std::string& name,
                 const std::vector<float>& values) {
    if (!same_piece(snapshot.state[name], part.global, part.piece, values)) {
      snapshot.replica_differences.push_back(fmt::format("{} on rank {}", name, communicator.rank()));
    }
  });
  each_gate_state([&](const GateState& state, const std::vector<float>& values) {
    if (snapshot.state[state.name] != values) {
      snapshot.replica_differences.push_back(fmt::format("{} on rank {}", state.name, communicator.rank()));
    }
  });
}

}  // namespace

Snapshot take_snapshot(const Config& config, int steps, Halves halves) {
  Snapshot snapshot;
  snapshot.world_size = check_layout(config);
  snapshot.gradients.resize(steps);
  std::mutex mutex;
  run_threads(snapshot.world_size,
              [&](Communicator& communicator) { run_rank(config, steps, halves, communicator, snapshot, mutex); },
              {.timeout_seconds = config.settings.run.timeout_seconds, .segment = {}});
  return snapshot;
}

namespace {

std::string first_difference_in_bits(const Tensors& a, const Tensors& b) {
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size() ||
        std::memcmp(other->second.data(), values.data(), values.size() * sizeof(float)) != 0) {
      return name;
    }
  }
  return a.size() == b.size() ? "" : "the number of tensors";
}

}  // namespace

std::string first_difference_in_bits(const Snapshot& a, const Snapshot& b) {
  if (a.reports.size() != b.reports.size()) {
    return "the number of steps";
  }
  for (std::size_t i = 0; i < a.reports.size(); ++i) {
    const StepReport &x = a.reports[i], &y = b.reports[i];
    const std::string step = fmt::format(" at step {}", i + 1);
    if (x.loss != y.loss || x.figures != y.figures || x.aux_loss != y.aux_loss || x.z_loss != y.z_loss) {
      return "a loss" + step;
    }
    if (const std::string name = first_difference_in_bits(a.gradients[i], b.gradients[i]); !name.empty()) {
      return "gradient of " + name + step;
    }
    if (x.grad_norm != y.grad_norm) {
      return "the gradient norm" + step;
    }
  }
  return first_difference_in_bits(a.state, b.state);
}

namespace {

// The plugin's table with its axis at one rank, where it has one.
void make_one_rank(PluginRequest& plugin) {
  std::map<std::string, Table::Entry> entries = plugin.table.entries();
  const auto size = entries.find("size");
  if (size != entries.end() && std::holds_alternative<std::int64_t>(size->second.value)) {
    size->second.value = std::int64_t{1};
    plugin.table = Table(plugin.table.path(), std::move(entries));
  }
}

}  // namespace

Config one_rank(Config config, const std::vector<std::string>& keep) {
  const std::vector<Mathematics> mathematics = Session(config).mathematics();
  std::vector<PluginRequest> kept;
  for (std::size_t i = 0; i < config.plugins.size(); ++i) {
    PluginRequest& plugin = config.plugins[i];
    if (std::find(keep.begin(), keep.end(), plugin.name) != keep.end()) {
      kept.push_back(plugin);
    } else if (mathematics[i] == Mathematics::changed) {
      make_one_rank(plugin);
      kept.push_back(plugin);
    }
  }
  config.plugins = std::move(kept);
  BatchSettings& batch = config.settings.batch;
  batch.micro_batch = 0;
  if (!batch.grow_to.empty()) {  // as much at once as all sizes have in common
    const std::vector<std::int64_t> sizes = batch_sizes(batch);
    batch.micro_batch =
        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}, &std::gcd<std::int64_t, std::int64_t>);
  }
  return config;
}

}  // namespace orthant
