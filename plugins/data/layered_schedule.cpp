#include "layered_schedule.h"

#include <numeric>

namespace orthant::data_plugin {

std::vector<int> LayeredSchedule::cut(std::span<const double> cost, int stages) const {
  if (stages != 1) {
    throw SettingError(
        "plugins.data.layered",
        fmt::format("plugins.data.layered orders the micro-batches of one stage, and the layout has {} stages: leave "
                    "it out, the schedule of the stages has an order of its own",
                    stages));
  }
  require(static_cast<int>(cost.size()) == layers_, "{} layers are to be cut, and the schedule was made for {}",
          cost.size(), layers_);
  std::vector<int> cut(cost.size() + 1);
  std::iota(cut.begin(), cut.end(), 0);
  return cut;
}

std::vector<Instr> LayeredSchedule::steps(int, int, int micro_batches) const {
  std::vector<Instr> program;
  auto all = [&](Op op, int chunk) {
    for (int m = 0; m < micro_batches; ++m) {
      program.push_back({op, chunk, m});
    }
  };
  all(Op::load, 0);
  for (int layer = 0; layer < layers_; ++layer) {
    all(Op::forward, layer);
  }
  for (int layer = layers_ - 1; layer >= 0; --layer) {
    all(Op::backward, layer);
  }
  program.push_back({Op::finish_grads});
  return program;
}

}  // namespace orthant::data_plugin
