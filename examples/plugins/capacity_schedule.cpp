// A hook that opens the capacity of the experts: it begins at a share of moe.capacity_factor and rises, evenly, to all
// of it. Few seats at first are cheap, and early routing is poor anyhow.
//
//   [plugins.capacity_schedule]
//   from = 0.5      # of moe.capacity_factor, in the second step; the first is over before a hook is asked
//   steps = 1000    # until all of it
//
// metrics.jsonl gets capacity_schedule.share, that of the next step.
#include <orthant/hook.h>
#include <orthant/plugin.h>

#include <algorithm>
#include <memory>

namespace {

using namespace orthant;

class Opening final : public Observer {
 public:
  Opening(double from, double steps) : from_(from), steps_(steps) {}

  void after_step(const StepReport& report, Changes& changes, std::map<std::string, double>& metrics) override {
    const double done = std::min(1.0, static_cast<double>(report.step) / steps_);
    changes.capacity_share = from_ + (1 - from_) * done;
    metrics["share"] = changes.capacity_share;
  }

 private:
  double from_, steps_;
};

class CapacitySchedule final : public Hook {
 public:
  CapacitySchedule(double from, double steps) : from_(from), steps_(steps) {}
  std::unique_ptr<Observer> make(const Settings&) const override { return std::make_unique<Opening>(from_, steps_); }

 private:
  double from_, steps_;
};

class CapacitySchedulePlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "from",
             .default_value = 0.5,
             .help = "Share of moe.capacity_factor at the start.",
             .minimum = 0.01,
             .maximum = 1},
            {.name = "steps", .default_value = 1000.0, .help = "Steps until it is whole.", .minimum = 1}};
  }
  void add_to(Catalogue& catalogue, const Table& config) override {
    catalogue.add<Hook>("capacity_schedule", "Opens the experts' capacity over the first steps.",
                        std::make_shared<CapacitySchedule>(config.number("from"), config.number("steps")));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("capacity_schedule", CapacitySchedulePlugin)
