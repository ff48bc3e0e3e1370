#include "apps/check/layout_checks.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "apps/check/adjoints.h"
#include "apps/check/child.h"
#include "apps/check/recording_communicator.h"
#include "apps/verify/verify.h"
#include "core/base/temporary_folder.h"
#include "core/data/source.h"
#include "core/layers/parameter_state.h"
#include "core/plan/keeper_chain.h"
#include "core/run/saving.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

constexpr int most_seconds_late = 120;

void on_plans(const Config& config, const std::function<void(Plan&, Stream&)>& body) {
  run_threads(check_layout(config),
              [&](Communicator& communicator) {
                const std::unique_ptr<Device> device = make_device(config.settings.run.device, 1);
                const std::unique_ptr<Stream> stream = device->make_main_stream();
                Session session(config);
                session.plan(communicator.rank(), &communicator, device.get());
                body(session.plan(), *stream);
              },
              {.timeout_seconds = config.settings.run.timeout_seconds, .segment = {}});
}

void train(const Config& config, Communicator& communicator, Device& device) {
  const std::unique_ptr<Stream> stream = device.make_main_stream();
  const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
  Session session(config);
  session.plan(communicator.rank(), &communicator, &device);
  Trainer trainer(session.plan(), *stream, *source);
  for (int step = 0; step < checked_steps; ++step) {
    trainer.step(step);
  }
  trainer.validate();
  stream->synchronize();
}

void train_all(const Config& config, const std::function<void(Communicator&)>& rank) {
  run_threads(check_layout(config), rank, {.timeout_seconds = config.settings.run.timeout_seconds, .segment = {}});
}

std::size_t threads_now() {
  std::size_t count = 0;
  for (std::filesystem::directory_iterator task("/proc/self/task"), end; task != end; ++task) {
    ++count;
  }
  return count;
}

}  // namespace

Finding check_claims(const Config& config, const std::string& plugin, bool sized) {
  check_layout(config);
  Session session(config);
  const std::vector<AxisSpec>& axes = session.mesh().axes();
  const auto own = std::find_if(axes.begin(), axes.end(), [&](const AxisSpec& axis) { return axis.name == plugin; });
  if (!sized) {
    return own == axes.end() ? Finding::skipped("no axis of its name")
                             : Finding::ok(fmt::format("{} ranks", session.world_size()));
  }
  const auto request = std::find_if(config.plugins.begin(), config.plugins.end(),
                                    [&](const PluginRequest& one) { return one.name == plugin; });
  const std::int64_t asked = request->table.integer("size");
  if (own == axes.end()) {
    return Finding::failed(
        fmt::format("it has a key 'size' but claims no axis '{}': name the axis as the plugin", plugin));
  }
  if (own->size != asked) {
    return Finding::failed(fmt::format("its key 'size' is {}, but its axis has {} ranks", asked, own->size));
  }
  return Finding::ok(fmt::format("{} ranks", session.world_size()));
}

Finding check_boundaries(const Config& config) {
  InnerProducts products;
  bool bound = false;
  on_plans(config, [&](Plan& plan, Stream& stream) {
    if (plan.mesh().rank() == 0) {
      bound = plan.to_string().find(": boundary ") != std::string::npos;
    }
    add_boundaries(products, plan, stream);
  });
  if (const std::string wrong = products.first_wrong(); !wrong.empty()) {
    return Finding::failed(wrong);
  }
  return bound ? Finding::ok() : Finding::skipped("it binds none, and none is missing");
}

Finding check_exchange(const Config& config) {
  InnerProducts products;
  bool bound = false;
  on_plans(config, [&](Plan& plan, Stream& stream) {
    if (plan.exchange() != nullptr) {
      if (plan.mesh().rank() == 0) {
        bound = true;
      }
      add_exchange(products, plan, stream);
    }
  });
  const std::string wrong = products.first_wrong();
  return !wrong.empty() ? Finding::failed(wrong) : bound ? Finding::ok() : Finding::skipped("it binds none");
}

Finding check_parity(const Config& config, const std::string& plugin) {
  std::vector<std::string> keep;
  {
    Session session(config);
    const std::vector<Mathematics> mathematics = session.mathematics();
    for (std::size_t i = 0; i < mathematics.size(); ++i) {
      if (config.plugins[i].name == plugin && mathematics[i] == Mathematics::of_ranks) {
        keep = {plugin};
      }
    }
    if (!keep.empty() && (session.mesh().workers() == 1 || config.plugins.size() == 1)) {
      return Finding::skipped("what it computes depends on which rank holds what: no other layout is comparable");
    }
  }
  const VerifyReport report = verify(config, checked_steps, keep);
  return report.ok() ? Finding::ok() : Finding::failed(fmt::format("{} (by {})", report.first_difference, report.axes));
}

Finding check_order(const Config& config) {
  CallRecord record;
  train_all(config, [&](Communicator& communicator) {
    RecordingCommunicator recording(communicator, record);
    const std::unique_ptr<Device> device = make_device(config.settings.run.device, 1);
    train(config, recording, *device);
  });
  std::size_t collectives = 0;
  for (const auto& [group, by_rank] : record.calls) {
    const auto& [first, calls] = *by_rank.begin();
    collectives += calls.size();
    for (const auto& [rank, others] : by_rank) {
      if (others != calls) {
        const auto [a, b] = std::mismatch(calls.begin(), calls.end(), others.begin(), others.end());
        return Finding::failed(fmt::format("call {} of group {}: rank {} calls {}, rank {} {}", a - calls.begin(),
                                           group, first, a == calls.end() ? "nothing" : *a, rank,
                                           b == others.end() ? "nothing" : *b));
      }
    }
    if (by_rank.size() != record.members.at(group)) {
      return Finding::failed(fmt::format("only {} of the {} members of group {} call its collectives", by_rank.size(),
                                         record.members.at(group), group));
    }
  }
  return Finding::ok(fmt::format("{} collectives", collectives));
}

Finding check_guarded(const Config& config) {
  Config guarded = config;
  guarded.settings.run.device = "guarded";
  const std::string different =
      first_difference_in_bits(take_snapshot(guarded, checked_steps), take_snapshot(config, checked_steps));
  return different.empty() ? Finding::ok() : Finding::failed(different + " differs from that on the plain device");
}

Finding check_late(const Config& config) {
  // Side streams first, and the late snapshot before the plain one: a CPU's side streams are a little late by
  // themselves.
  for (const auto& [device, who] : {std::pair{"late_sides", "side"}, {"late", "main"}}) {
    Config late = config;
    late.settings.run.device = device;
    try {
      // What is not there yet may be an index: a crash has to say who was late.
      const std::string different = in_child(
          [&] {
            const Snapshot found = take_snapshot(late, checked_steps);
            return first_difference_in_bits(found, take_snapshot(config, checked_steps));
          },
          most_seconds_late);
      if (!different.empty()) {
        return Finding::failed(
            fmt::format("when {} streams are late: {} differs: some work does not wait for what another "
                        "stream writes (Stream::record, Stream::wait)",
                        who, different));
      }
    } catch (const std::exception& failure) {
      return Finding::failed(fmt::format("when {} streams are late: {}", who, failure.what()));
    }
  }
  return Finding::ok();
}

Finding check_repeats(const Config& config) {
  const std::string different =
      first_difference_in_bits(take_snapshot(config, checked_steps), take_snapshot(config, checked_steps));
  return different.empty() ? Finding::ok() : Finding::failed(different + " differs in some bit from run to run");
}

namespace {

// What is left of a run: its losses, and the bits that each rank owns.
struct Outcomes {
  std::vector<double> losses;
  std::vector<float> owned;
};

void add_owned(std::vector<float>& to, Trainer& trainer, const Plan& plan, Stream& stream) {
  for (const auto& group : trainer.parameters().groups()) {
    with_held(plan.keepers(), *group, Held::saved, {.stream = stream}, [&](Stream& home) {
      for (const Param& p : group->params) {
        for (const StatePiece& part : state_pieces(*group, p)) {
          if (part.state.empty()) {
            const std::size_t at = to.size();
            to.resize(at + static_cast<std::size_t>(part.piece.elements()));
            part.download(to.data() + at, home);
          }
        }
      }
    });
  }
}

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((temporary_folder() / "orthant_check_XXXXXX").string()) {
    require(mkdtemp(path_.data()) != nullptr, "cannot make a folder in {}", temporary_folder().string());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Steps [0, 2 * checked_steps) of each rank. With a folder it is saved after half of them, and goes on in objects that
// are made anew and have nothing but the checkpoint.
std::vector<Outcomes> outcomes(const Config& config, const std::string& folder) {
  std::vector<Outcomes> all(check_layout(config));
  train_all(config, [&](Communicator& communicator) {
    Outcomes& mine = all[communicator.rank()];
    const std::unique_ptr<Device> device = make_device(config.settings.run.device, 1);
    const std::unique_ptr<Stream> stream = device->make_main_stream();
    const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
    for (int half = 0; half < 2; ++half) {
      Session session(config);
      session.plan(communicator.rank(), &communicator, device.get());
      Trainer trainer(session.plan(), *stream, *source);
      int from = 0;
      if (half == 1) {
        const CheckpointReader reader(checkpoint_folder(folder, checked_steps));
        load_checkpoint(reader, session.plan(), trainer.parameters(), *stream);
        trainer.observers().restore(reader.state());
        from = checked_steps;
      }
      const int to = half == 0 && !folder.empty() ? checked_steps : 2 * checked_steps;
      for (int step = from; step < to; ++step) {
        mine.losses.push_back(trainer.step(step).loss);
      }
      if (to == 2 * checked_steps) {
        add_owned(mine.owned, trainer, session.plan(), *stream);
        return;
      }
      save_checkpoint(folder, checked_steps, session.plan(), trainer.parameters(), trainer.observers().state(),
                      {communicator, trainer.world()}, *stream);
      stream->synchronize();
    }
  });
  return all;
}

}  // namespace

Finding check_resume(const Config& config) {
  const TemporaryFolder folder;
  const std::vector<Outcomes> straight = outcomes(config, ""), resumed = outcomes(config, folder.path());
  for (std::size_t rank = 0; rank < straight.size(); ++rank) {
    for (std::size_t step = 0; step < straight[rank].losses.size(); ++step) {
      if (straight[rank].losses[step] != resumed[rank].losses[step]) {
        return Finding::failed(fmt::format(
            "the loss of step {} on rank {} is {} where it is resumed after step {}, and {} where "
            "it goes on: what is remembered from step to step belongs in Keeper::state, or in Observer::numbers",
            step + 1, rank, resumed[rank].losses[step], checked_steps, straight[rank].losses[step]));
      }
    }
    if (std::memcmp(straight[rank].owned.data(), resumed[rank].owned.data(),
                    straight[rank].owned.size() * sizeof(float)) != 0) {
      return Finding::failed(
          fmt::format("after step {} rank {} has other weights where it is resumed after step {}: what is "
                      "remembered from step to step belongs in Keeper::state",
                      2 * checked_steps, rank, checked_steps));
    }
  }
  return Finding::ok();
}

Finding check_leaks(const Config& config) {
  std::thread([] {}).join();  // with its first thread a process may get one for good: the thread sanitizer's own
  const std::size_t before = threads_now();
  std::mutex mutex;
  std::int64_t left = 0;
  train_all(config, [&](Communicator& communicator) {
    const std::unique_ptr<Device> device = make_device(config.settings.run.device, 1);
    train(config, communicator, *device);
    const std::lock_guard lock(mutex);
    left = std::max(left, device->memory().current_bytes + device->host_memory().current_bytes);
  });
  if (left != 0) {
    return Finding::failed(fmt::format("a rank still holds {} bytes of the device when its layout is gone", left));
  }
  for (int wait = 0; wait < 100 && threads_now() > before; ++wait) {  // a thread that has ended may still be counted
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::size_t after = threads_now();
  return after <= before ? Finding::ok() : Finding::failed(fmt::format("{} threads more than before", after - before));
}

}  // namespace orthant
