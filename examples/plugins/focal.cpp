// A loss of one's own: cross entropy with label smoothing (Szegedy et al., "Rethinking the Inception Architecture",
// 2016) and a focal term (Lin et al., "Focal Loss for Dense Object Detection", 2017):
//
//   (1 - smoothing) (1 - p)^gamma * -log p  +  smoothing * the mean of -log p_v over the vocabulary
//
// with p the probability of the label. objective = "focal" under [train], and under [plugins.focal] its numbers.
//
// With c = -log p(label), l the logits and g = softmax - onehot, which OutputRows::cross_entropy gives in any layout:
//   the mean of -log p_v is c + l_label - the mean of l; its gradient is g + onehot - 1 / V
//   the focal term's gradient is f'(c) g, where f(c) = (1 - e^-c)^gamma c
#include <orthant/objective.h>
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

using namespace orthant;

namespace {

struct Numbers {
  double gamma, smoothing;
  std::string fault;  // a mistake, for the tests of the conformance suite; empty: none
};

// f and its derivative.
struct Focal {
  Focal(double c, double gamma) {
    const double q = -std::expm1(-c);  // 1 - p
    const double weight = std::pow(q, gamma);
    value = weight * c;
    slope = q > 0 ? weight + gamma * c * weight / q * (1 - q) : weight;
  }
  double value, slope;
};

// Of one chunk: each row's own label's logit and sum of logits, of the columns that this rank has. f64 [rows, 2].
Tensor row_sums(const Tensor& logits, const Tensor& label, std::int64_t first, Stream& s) {
  Tensor sums = s.device().empty(DType::f64, {logits.dim(0), 2});
  s.apply({.name = "focal/row_sums",
           .inputs = {logits, label},
           .outputs = {sums},
           .host = [first, columns = logits.dim(1)](const HostArguments& a) {
             const auto x = a.input<float>(0);
             const auto of = a.input<std::int32_t>(1);
             const auto to = a.output<double>(0);
             for (std::size_t t = 0; t < of.size(); ++t) {
               const auto row = x.subspan(t * static_cast<std::size_t>(columns), static_cast<std::size_t>(columns));
               const std::int64_t own = of[t] - first;
               to[2 * t] = of[t] >= 0 && own >= 0 && own < columns ? static_cast<double>(row[own]) : 0;
               to[2 * t + 1] = 0;
               for (const float logit : row) {
                 to[2 * t + 1] += static_cast<double>(logit);
               }
             }
           }});
  return sums;
}

class FocalLoss final : public Objective {
 public:
  explicit FocalLoss(Numbers numbers) : numbers_(numbers) {}

  std::vector<std::string> sums(const Settings&) const override { return {"loss", "cross entropy"}; }

  void run(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx) const override {
    Stream& s = ctx.stream;
    for (std::int64_t begin = 0; begin < rows.tokens(); begin += rows.chunk()) {
      const std::int64_t count = std::min(rows.chunk(), rows.tokens() - begin);
      const Tensor label = ctx.batch.label.rows(begin, count), logits = rows.logits(begin, count);
      const Tensor sums = row_sums(logits, label, rows.first_column(), s);
      if (numbers_.fault != "own_columns") {
        rows.sum_over_columns(sums);
      }
      const Tensor c = ctx.device().empty(DType::f32, {count}), loss = ctx.device().empty(DType::f32, {count});
      rows.cross_entropy(c, logits, label, 1);  // logits become g
      mix(logits, loss, c, sums, label, rows.first_column(), ctx);
      s.sum(in.sums.slice(0, {1}), loss);
      s.sum(in.sums.slice(1, {1}), c);
      if (numbers_.fault == "few_rows") {
        return;
      }
      rows.learn(begin, logits);
    }
  }

  ObjectiveReport report(const Settings&, std::span<const double> sums, std::span<const std::int64_t> counts,
                         bool) const override {
    const double tokens = static_cast<double>(counts[0]);
    return {.loss = sums[0] / tokens,
            .figures = {{numbers_.fault == "figure" ? "grad_norm" : "cross_entropy_loss", sums[1] / tokens}}};
  }

  std::string told(const std::map<std::string, double>& figures, bool training) const override {
    const char* const name = numbers_.fault == "told" ? "crossentropy" : "cross_entropy_loss";
    return training ? fmt::format("cross entropy {:.4f}", figures.at(name)) : "";
  }

 private:
  // The loss of each row, and in place of g its gradient times the scale of the loss.
  void mix(const Tensor& g, const Tensor& loss, const Tensor& c, const Tensor& sums, const Tensor& label,
           std::int64_t first, const StepContext& ctx) const {
    const double vocabulary = static_cast<double>(ctx.settings().model.vocab_size);
    ctx.stream.apply({.name = "focal/mix",
                      .inputs = {c, sums, label, numbers_.fault == "undeclared" ? c : g},
                      .outputs = {loss, g},
                      .host = [=, numbers = numbers_, scale = static_cast<double>(ctx.loss_scale),
                               columns = g.dim(1)](const HostArguments& a) {
                        const auto of = a.input<float>(0);
                        const auto own = a.input<double>(1);
                        const auto labels = a.input<std::int32_t>(2);
                        const auto to = a.output<float>(0), d = a.output<float>(1);
                        const double flat = numbers.smoothing / vocabulary;
                        for (std::size_t t = 0; t < labels.size(); ++t) {
                          if (labels[t] < 0) {  // c and g are 0
                            to[t] = 0;
                            continue;
                          }
                          const double ce = static_cast<double>(of[t]);
                          const Focal focal(ce, numbers.gamma);
                          const double apart = ce + own[2 * t] - own[2 * t + 1] / vocabulary;
                          to[t] = static_cast<float>((1 - numbers.smoothing) * focal.value + numbers.smoothing * apart);
                          const double slope = numbers.fault == "slope" ? focal.value / ce : focal.slope;
                          const double weight = (1 - numbers.smoothing) * slope + numbers.smoothing;
                          for (std::int64_t v = 0; v < columns; ++v) {
                            float& x = d[t * static_cast<std::size_t>(columns) + static_cast<std::size_t>(v)];
                            const double onehot = v + first == labels[t] ? numbers.smoothing : 0;
                            x = static_cast<float>(scale * (weight * static_cast<double>(x) + onehot - flat));
                          }
                        }
                      }});
  }

  Numbers numbers_;
};

// It claims no axis and binds no seam: it only adds to the catalogue.
class FocalPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "gamma", .default_value = 2.0, .help = "Power of 1 - p; 0: no focal term.", .minimum = 0},
            {.name = "smoothing",
             .default_value = 0.1,
             .help = "Share of the label that the whole vocabulary has.",
             .minimum = 0,
             .maximum = 1},
            {.name = "fault",
             .default_value = std::string(),
             .help = "A mistake to make; empty: none.",
             .choices = {"", "own_columns", "slope", "few_rows", "figure", "told", "undeclared"}}};
  }
  void add_to(Catalogue& catalogue, const Table& table) override {
    catalogue.add<Objective>(
        "focal", "Cross entropy with label smoothing and a focal term (Lin et al., 2017).",
        std::make_shared<FocalLoss>(Numbers{table.number("gamma"), table.number("smoothing"), table.text("fault")}));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("focal", FocalPlugin)
