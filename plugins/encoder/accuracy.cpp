#include "accuracy.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <orthant/group.h>
#include <orthant/settings.h>

namespace orthant::encoder {
namespace {

// Of one chunk: f64 [rows], 1 where a column of this rank has a greater probability than the label.
//   loss    f32 [rows]: -log p(label)
//   g       f32 [rows, V_r]: scale * (softmax - onehot), which is below 0 at the label and nowhere else
Tensor ahead_of(const Tensor& loss, const Tensor& g, float scale, Stream& s) {
  const Tensor most = s.device().empty(DType::f64, {g.dim(0)});
  s.fill(most, 0);
  s.reduce_matrix(most, {}, {}, g, ReduceOp::max);
  Tensor ahead = s.device().empty(DType::f64, {g.dim(0)});
  s.apply({.name = "encoder/ahead",
           .inputs = {most, loss},
           .outputs = {ahead},
           .host = [scale = static_cast<double>(scale)](const HostArguments& a) {
             const auto other = a.input<double>(0);
             const auto of = a.input<float>(1);
             const auto to = a.output<double>(0);
             for (std::size_t t = 0; t < to.size(); ++t) {
               to[t] = other[t] > scale * std::exp(-static_cast<double>(of[t])) ? 1 : 0;
             }
           }});
  return ahead;
}

// f32 [rows]: 1 where there is a label and nothing is ahead of it.
Tensor right_of(const Tensor& ahead, const Tensor& label, Stream& s) {
  Tensor right = s.device().empty(DType::f32, {label.dim(0)});
  s.apply({.name = "encoder/right", .inputs = {ahead, label}, .outputs = {right}, .host = [](const HostArguments& a) {
             const auto in_front = a.input<double>(0);
             const auto of = a.input<std::int32_t>(1);
             const auto to = a.output<float>(0);
             for (std::size_t t = 0; t < to.size(); ++t) {
               to[t] = of[t] >= 0 && in_front[t] == 0 ? 1 : 0;
             }
           }});
  return right;
}

class Accuracy final : public Objective {
 public:
  Accuracy(std::string figure, std::string source) : figure_(std::move(figure)), source_(std::move(source)) {}

  bool implied(const Settings& settings) const override { return settings.data.source == source_; }
  std::vector<std::string> sums(const Settings&) const override { return {"loss", "right"}; }

  void run(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx) const override {
    Stream& s = ctx.stream;
    const float scale = ctx.training ? ctx.loss_scale : 1;
    for (std::int64_t begin = 0; begin < rows.tokens(); begin += rows.chunk()) {
      const std::int64_t count = std::min(rows.chunk(), rows.tokens() - begin);
      const Tensor label = ctx.batch.label.rows(begin, count), logits = rows.logits(begin, count);
      const Tensor loss = ctx.device().empty(DType::f32, {count});
      rows.cross_entropy(loss, logits, label, scale);  // logits become their gradient
      const Tensor ahead = ahead_of(loss, logits, scale, s);
      rows.sum_over_columns(ahead);
      s.sum(in.sums.slice(0, {1}), loss);
      s.sum(in.sums.slice(1, {1}), right_of(ahead, label, s));
      rows.learn(begin, logits);
    }
  }

  ObjectiveReport report(const Settings&, std::span<const double> sums, std::span<const std::int64_t> counts,
                         bool) const override {
    const double labels = static_cast<double>(std::max<std::int64_t>(counts[0], 1));
    return {.loss = sums[0] / labels, .figures = {{figure_, sums[1] / labels}}};
  }
  std::string told(const std::map<std::string, double>& figures, bool) const override {
    return fmt::format("accuracy {:.4f}", figures.at(figure_));
  }

 private:
  std::string figure_, source_;
};

}  // namespace

std::shared_ptr<const Objective> make_accuracy(const std::string& figure, const std::string& source) {
  return std::make_shared<Accuracy>(figure, source);
}

}  // namespace orthant::encoder
