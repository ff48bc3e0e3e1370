// A hook that watches for spikes of the loss: after a step whose loss is far above its running mean, the learning rate
// is lowered, and raised again, a little each step, as long as all is calm.
//
//   [plugins.spike_watcher]
//   above = 1.5     # times the mean: a spike
//
// metrics.jsonl gets spike_watcher.spikes, .mean_loss and .lr_factor.
// [plugins.spike_watcher] fault plants a mistake, for the tests of `orthant plugins --check`.
#include <orthant/hook.h>
#include <orthant/plugin.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

namespace {

using namespace orthant;

struct How {
  double above, lower, recovery;
  std::string fault;
};

class Watch final : public Observer {
 public:
  explicit Watch(const How& how) : how_(how) {}

  void after_step(const StepReport& report, Changes& changes, std::map<std::string, double>& metrics) override {
    const bool spike = mean_ > 0 && report.loss > how_.above * mean_;
    spikes_ += spike ? 1 : 0;
    changes.lr_factor = spike ? changes.lr_factor * how_.lower : std::min(1.0, changes.lr_factor * how_.recovery);
    if (how_.fault == "own_way") {  // decides by something that differs from rank to rank
      static std::atomic<int> calls = 0;
      changes.lr_factor = 1.0 / (1 + ++calls);
    }
    if (how_.fault == "forgets") {  // no spike: what it remembers decides, but numbers() does not tell it
      changes.lr_factor = 1.0 / static_cast<double>(1 + ++steps_);
    }
    mean_ = mean_ > 0 ? 0.9 * mean_ + 0.1 * report.loss : report.loss;
    metrics = {{"spikes", static_cast<double>(spikes_)}, {"mean_loss", mean_}, {"lr_factor", changes.lr_factor}};
  }
  std::map<std::string, double> numbers() const override {
    return {{"spikes", static_cast<double>(spikes_)}, {"mean", mean_}};
  }
  void restore(const std::map<std::string, double>& numbers) override {
    spikes_ = static_cast<std::int64_t>(numbers.at("spikes"));
    mean_ = numbers.at("mean");
  }

 private:
  How how_;
  std::int64_t spikes_ = 0, steps_ = 0;
  double mean_ = 0;
};

class SpikeWatcher final : public Hook {
 public:
  explicit SpikeWatcher(How how) : how_(std::move(how)) {}
  std::unique_ptr<Observer> make(const Settings&) const override { return std::make_unique<Watch>(how_); }

 private:
  How how_;
};

class SpikeWatcherPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {
        {.name = "above", .default_value = 1.5, .help = "A loss so many times its mean is a spike.", .minimum = 0},
        {.name = "lower", .default_value = 0.5, .help = "Factor of the learning rate after a spike.", .minimum = 1e-6},
        {.name = "recovery", .default_value = 1.05, .help = "Factor of it after any other step.", .minimum = 1},
        {.name = "fault", .default_value = std::string(), .help = "A mistake to plant; empty: none."}};
  }
  void add_to(Catalogue& catalogue, const Table& config) override {
    catalogue.add<Hook>("spike_watcher", "Lowers the learning rate after a spike of the loss.",
                        std::make_shared<SpikeWatcher>(How{config.number("above"), config.number("lower"),
                                                           config.number("recovery"), config.text("fault")}));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("spike_watcher", SpikeWatcherPlugin)
