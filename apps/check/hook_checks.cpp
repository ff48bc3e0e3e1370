#include <orthant/hook.h>

#include <algorithm>
#include <mutex>

#include "apps/check/kind_checks.h"
#include "core/data/source.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

constexpr int steps = 4;

// The first key whose value differs, in words; empty: none does.
std::string difference(const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b) {
  for (const auto& [key, value] : a) {
    const auto other = b.find(key);
    if (other == b.end() || other->second != value) {
      return fmt::format("{} is {} and {}", key, value, other == b.end() ? "absent" : other->second);
    }
  }
  return a.size() == b.size() ? "" : "one has a number that the other has not";
}

std::map<std::string, std::string> told(const Observers& observers, const StepReport& report) {
  std::map<std::string, std::string> all = observers.state();
  for (const auto& [key, value] : report.metrics) {
    all["metric " + key] = fmt::format("{}", value);
  }
  return all;
}

// Calm steps, one whose loss is far above the others, and calm ones again.
std::vector<StepReport> reports() {
  std::vector<StepReport> made;
  for (int step = 0; step < 12; ++step) {
    StepReport report{.step = step, .loss = 4 - 0.1 * step, .grad_norm = 1, .lr = 1e-3, .tokens = 128, .layers = {}};
    report.loss *= step == 4 || step == 8 ? 5 : 1;
    made.push_back(report);
  }
  return made;
}

}  // namespace

Finding check_hook_ranks(const KindUnderTest& kind) {
  const Config config = kind.experiment({fmt::format("plugins.{}.size=2", partner_axis)});
  std::mutex mutex;
  std::map<int, std::map<std::string, std::string>> by_rank;
  run_threads(check_layout(config),
              [&](Communicator& communicator) {
                const std::unique_ptr<Device> device = make_device(config.settings.run.device, 1);
                const std::unique_ptr<Stream> stream = device->make_main_stream();
                const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
                Session session(config);
                session.plan(communicator.rank(), &communicator, device.get());
                Trainer trainer(session.plan(), *stream, *source);
                StepReport last;
                for (int step = 0; step < steps; ++step) {
                  last = trainer.step(step);
                }
                stream->synchronize();
                const std::lock_guard lock(mutex);
                by_rank[communicator.rank()] = told(trainer.observers(), last);
              },
              {.timeout_seconds = config.settings.run.timeout_seconds, .segment = {}});
  for (const auto& [rank, numbers] : by_rank) {
    if (const std::string wrong = difference(by_rank.at(0), numbers); !wrong.empty()) {
      return Finding::failed(fmt::format("on ranks 0 and {}, {}", rank, wrong));
    }
  }
  return Finding::ok(fmt::format("{} ranks", by_rank.size()));
}

Finding check_hook_restore(const KindUnderTest& kind) {
  const Config config = kind.experiment();
  const std::vector<StepReport> all = reports();
  for (std::size_t stop = 1; stop < all.size(); ++stop) {
    Observers whole(config.settings), first(config.settings), second(config.settings);
    for (std::size_t i = 0; i < all.size(); ++i) {
      StepReport a = all[i], b = all[i];
      if (i == stop) {
        second.restore(first.state());
      }
      whole.after_step(a);
      Observers& resumed = i < stop ? first : second;
      resumed.after_step(b);
      if (const std::string wrong = difference(told(whole, a), told(resumed, b)); !wrong.empty()) {
        return Finding::failed(fmt::format("saved after step {} and restored, at step {}: {}", stop, i + 1, wrong));
      }
    }
  }
  return Finding::ok("saved after each step, with spikes of the loss");
}

}  // namespace orthant
