// The loss of a student: its labels' cross entropy, and how far it is from a teacher. Of a token with a label
//   (1 - weight) * -log p(label) + weight * temperature^2 * KL(q_t || p_t)
// p_t = softmax(logits / temperature) of this model, q_t the same of the teacher.
//
// Made of cross entropies alone, so that a divided vocabulary and any device have it as they have those. With p and q
// the softmax of the student's and the teacher's logits l and m over the temperature t, and y a one-hot label,
//   the gradient of t^2 KL(q || p) by l:  t (p - q) = t (p - y) - t (q - y)
//   KL(q || p) = sum_v (q - y)_v (m - l)_v / t  -  log p(label)  +  log q(label)
// and both p - y and q - y are gradients of a cross entropy. Source: Hinton et al., "Distilling the knowledge in a
// neural network", 2015.
#include <orthant/settings.h>

#include <algorithm>
#include <cmath>

#include "core/config/rules.h"
#include "core/objectives/cross_entropy.h"
#include "core/objectives/kinds.h"

namespace orthant {
namespace {

struct DistilKeys {
  std::string teacher;  // a run's or a checkpoint's folder; absolute; empty: none
  double weight = 0.5;  // above 0, at most 1
  double temperature = 1;
  static const Keys<DistilKeys>& keys();
};

const Keys<DistilKeys>& DistilKeys::keys() {
  static const auto all =
      Keys<DistilKeys>()
          .add("teacher", &DistilKeys::teacher,
               "A run's folder (its newest checkpoint) or a checkpoint's, of a model whose logits this one learns "
               "from; a relative path is relative to the file that names it. Empty: none.")
          .in("distil")
          .file()
          .add("weight", &DistilKeys::weight,
               "The loss is (1 - weight) times the cross entropy, and weight times what the teacher asks for; above 0.",
               between(0, 1))
          .in("distil")
          .refuse([](const DistilKeys& keys) {
            return std::string(keys.weight > 0 ? ""
                                               : "with 0 the teacher changes nothing\nwrite a number above 0 and at "
                                                 "most 1, or leave out [distil]");
          })
          .add("temperature", &DistilKeys::temperature,
               "The logits of both are divided by it where they are compared; above 0.", between(0, 1000))
          .in("distil")
          .refuse([](const DistilKeys& keys) {
            return positive_float(keys.temperature)
                       ? ""
                       : fmt::format("{} is not above 0\nwrite 1, or more to weigh what is unlikely", keys.temperature);
          });
  return all;
}

DistilKeys distil_of(const Settings& s) {
  return read_keys<DistilKeys>(kind_values(s, "distil"));
}

Tensor divided(const StepContext& ctx, const Tensor& logits, double by) {
  Tensor copy = ctx.device().empty(DType::f32, logits.shape());
  ctx.stream.copy(copy, logits);
  if (by != 1) {
    ctx.stream.scale(copy, static_cast<float>(1 / by));
  }
  return copy;
}

// One micro-batch between the begin and the end of its teacher.
class Student {
 public:
  Student(OutputRows& rows, const StepContext& ctx) : rows_(rows), ctx_(ctx), distil_(distil_of(ctx.settings())) {}

  // loss f32 [rows] = -log p(label) of the student. Its logits become the gradient of ctx.loss_scale times the whole
  // loss; those of the teacher are overwritten. divergence: f64 [1]; over_columns: f64 [1], of this rank's columns.
  void operator()(const Tensor& loss, const Tensor& logits, const Tensor& teacher, const Tensor& label,
                  const Tensor& divergence, const Tensor& over_columns) {
    Stream& s = ctx_.stream;
    const double t = distil_.temperature;
    const float scale = static_cast<float>(distil_.weight * t * static_cast<double>(ctx_.loss_scale));
    const Tensor student = divided(ctx_, logits, t);  // l / t [T, V_r]
    if (t != 1) {
      s.scale(teacher, static_cast<float>(1 / t));
    }
    const Tensor apart = divided(ctx_, student, -1);  // (m - l) / t
    s.add(apart, teacher);
    const Tensor of_student = ctx_.device().empty(DType::f32, loss.shape());  // -log p(label) at the temperature
    const Tensor of_teacher = ctx_.device().empty(DType::f32, loss.shape());
    rows_.cross_entropy(of_student, student, label, scale);
    rows_.cross_entropy(of_teacher, teacher, label, 1);  // q - y
    s.multiply(apart, teacher);
    s.sum(over_columns, apart);
    s.sum(divergence, of_student);
    s.scale(of_teacher, -1);
    s.sum(divergence, of_teacher);
    rows_.cross_entropy(loss, logits, label, static_cast<float>((1 - distil_.weight) * ctx_.loss_scale));
    s.scale(teacher, -scale);
    s.add(logits, student);
    s.add(logits, teacher);
  }

 private:
  OutputRows& rows_;
  const StepContext& ctx_;
  DistilKeys distil_;
};

class Distil final : public Objective {
 public:
  std::vector<KindKey> keys() const override { return DistilKeys::keys().declared(); }
  bool implied(const Settings& s) const override { return !distil_of(s).teacher.empty(); }

  std::vector<Refusal> refusals(const Settings& s) const override {
    std::vector<Refusal> found;
    if (!implied(s)) {
      found.push_back({{"train.objective"},
                       "[train] objective: \"distil\" learns from a teacher, and [distil] teacher names none",
                       "write [distil] teacher = the folder of a run, or leave objective out"});
    }
    return found;
  }

  ReferenceModel reference(const Settings& s) const override {
    return {distil_of(s).teacher, "distil.teacher", "[distil] teacher", "distil.teacher"};
  }

  std::string unit(const Settings&) const override { return "nats per token"; }
  std::vector<std::string> sums(const Settings&) const override { return {"loss", "divergence"}; }

  void run(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx) const override {
    const Tensor sum = in.sums.slice(0, {1}), divergence = in.sums.slice(1, {1});
    if (in.teacher == nullptr) {
      cross_entropy({.label = ctx.batch.label, .sum = sum, .scale = ctx.loss_scale}, rows, ctx);
      return;
    }
    const std::int64_t tokens = rows.tokens();
    const Tensor losses = ctx.device().empty(DType::f32, {tokens});
    in.teacher->begin(ctx.micro_batch);
    const Tensor over_columns = ctx.device().empty(DType::f64, {1});
    ctx.stream.fill(over_columns, 0);
    Student student(rows, ctx);
    for (std::int64_t begin = 0; begin < tokens; begin += rows.chunk()) {
      const std::int64_t count = std::min(rows.chunk(), tokens - begin);
      const Tensor logits = rows.logits(begin, count);
      student(losses.rows(begin, count), logits, in.teacher->logits(begin, count), ctx.batch.label.rows(begin, count),
              divergence, over_columns);
      rows.learn(begin, logits);
    }
    ctx.stream.sum(sum, losses);
    rows.sum_over_columns(over_columns);
    ctx.stream.sum(divergence, over_columns);
    in.teacher->end();
  }

  ObjectiveReport report(const Settings& s, std::span<const double> sums, std::span<const std::int64_t> counts,
                         bool training) const override {
    const DistilKeys own = distil_of(s);
    const double tokens = static_cast<double>(counts[0]), temperature = own.temperature;
    ObjectiveReport told{.loss = sums[0] / tokens};
    if (training) {
      const double apart = temperature * temperature * sums[1] / tokens;
      told.figures = {{"distil_loss", apart}};
      if (!std::isfinite(apart) && std::isfinite(told.loss)) {
        told.failure =
            fmt::format("the loss is {}, but the teacher's logits ('{}') are not finite", told.loss, own.teacher);
      }
    }
    return told;
  }

  std::string told(const std::map<std::string, double>& figures, bool training) const override {
    return training ? fmt::format("distil {:.4f}", figures.at("distil_loss")) : "";
  }
};

}  // namespace

std::shared_ptr<const Objective> make_distil() {
  return std::make_shared<Distil>();
}

}  // namespace orthant
