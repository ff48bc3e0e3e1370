#include "soft_experts.h"

#include <utility>
#include <vector>

#include <orthant/sizes.h>

#include "dense_rows.h"
#include "settings.h"

namespace orthant::images {
namespace {

constexpr Site experts_enter{Region::experts, Side::enter}, experts_leave{Region::experts, Side::leave};

std::int64_t slots_of(const Settings& s) {
  return read_keys<SoftKeys>(kind_values(s, "moe")).slots;
}

std::string expert_name(const std::string& stem, std::int64_t expert, const char* matrix) {
  return fmt::format("{}.experts.{}.{}.weight", stem, expert, matrix);
}

class SoftExperts final : public PartLayer {
 public:
  SoftExperts(const std::string& stem, const Parameters& parameters, const Plan& plan)
      : slots_(parameters.ref(stem + ".slots.weight")),
        activation_(plan.settings().model.activation),
        experts_(plan.settings().moe.experts),
        slots_of_each_(slots_of(plan.settings())) {
    std::vector<ParamRef> in, out;
    for (std::int64_t e = 0; e < experts_; ++e) {
      if (!parameters.holds(expert_name(stem, e, "w1"))) {
        continue;
      }
      in.push_back(parameters.ref(expert_name(stem, e, "w1")));
      if (is_gated(activation_)) {
        in.push_back(parameters.ref(expert_name(stem, e, "w3")));
      }
      out.push_back(parameters.ref(expert_name(stem, e, "w2")));
    }
    local_ = static_cast<std::int64_t>(out.size());
    width_ = out.front().param().size[1];
    in_ = ParamMatrix(in);
    out_ = ParamMatrix(out);
  }

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override {
    Stream& s = ctx.stream;
    Device& device = ctx.device();
    const Tensor x = ctx.cross(experts_enter, n);  // [T, d]
    const std::int64_t rows = x.dim(0), d = x.dim(1), slots = slots_.param().size[0];
    const Tensor logits = device.empty(DType::f32, {rows, slots});
    s.gemm(logits, x, slots_.weight(), {.transpose_b = true});
    const Tensor dispatch = device.empty(DType::f32, logits.shape()),
                 combine = device.empty(DType::f32, logits.shape());
    soft_weights(dispatch, combine, logits, ctx.batch.positions, s);
    const Tensor images = offsets(ctx, ctx.batch.sequences, ctx.batch.positions);
    const Tensor mixed = device.empty(DType::f32, {ctx.batch.sequences, slots, d});
    s.grouped_gemm_tn(mixed, as_type(dispatch, x.dtype(), s), x, images, 0);
    const ExchangePlan plan = travels(ctx);
    const Tensor sent = sent_to_experts(ctx, as_type(mixed, x.dtype(), s), plan);  // [R, d]
    const Tensor of_experts = offsets(ctx, local_, sent.dim(0) / local_);
    const Tensor h = device.empty(x.dtype(), {sent.dim(0), hidden()});
    s.grouped_gemm(h, sent, in_view(in_.weight(), d), of_experts, {.transpose_b = true});
    const Tensor made = device.empty(x.dtype(), sent.shape());
    s.grouped_gemm(made, activated(ctx, h), out_view(out_.weight(), d), of_experts, {.transpose_b = true});
    const Tensor back = sent_back(ctx, made, plan);  // [images, Q, d]
    for (const Tensor& t : {x, dispatch, combine, sent, h, back}) {
      saved.push(t);
    }
    saved.plans.push_back(plan);
    const Tensor y = device.empty(x.dtype(), x.shape());
    s.grouped_gemm(y, as_type(combine, x.dtype(), s), back, images, {});
    return ctx.cross(experts_leave, y);
  }

  Tensor backward(const StepContext& ctx, const Tensor& dy_there, Saved& saved) const override {
    Stream& s = ctx.stream;
    Device& device = ctx.device();
    const Tensor back = saved.pop(), h = saved.pop(), sent = saved.pop(), combine = saved.pop(), dispatch = saved.pop(),
                 x = saved.pop();
    const ExchangePlan plan = std::move(saved.plans.back());
    saved.plans.pop_back();
    const DType type = x.dtype();
    const Tensor dy = ctx.cross_back(experts_leave, dy_there);
    const Tensor images = offsets(ctx, ctx.batch.sequences, ctx.batch.positions);
    const Tensor dcombine = device.empty(DType::f32, combine.shape()), dback = device.empty(DType::f32, back.shape());
    s.grouped_gemm(dcombine, dy, back, images, {.transpose_b = true});
    s.grouped_gemm_tn(dback, as_type(combine, type, s), dy, images, 0);
    const Tensor dmade = sent_to_experts(ctx, as_type(dback, type, s), plan);
    const Tensor dmixed = sent_back(ctx, experts_backward(ctx, dmade, h, sent), plan);  // [images, Q, d]
    const Tensor ddispatch = device.empty(DType::f32, dispatch.shape()), dx = device.empty(type, x.shape());
    s.grouped_gemm(ddispatch, x, dmixed, images, {.transpose_b = true});
    s.grouped_gemm(dx, as_type(dispatch, type, s), dmixed, images, {});
    Tensor dlogits = device.empty(DType::f32, dispatch.shape());
    soft_weights_backward(dlogits, ddispatch, dcombine, dispatch, combine, ctx.batch.positions, s);
    dlogits = as_type(dlogits, type, s);
    s.add(dx, linear_backward(ctx, dlogits, x, slots_.weight(), slots_.wanted_grad()));
    return ctx.cross_back(experts_enter, dx);
  }

 private:
  std::int64_t hidden() const { return width_ * (is_gated(activation_) ? 2 : 1); }
  Tensor in_view(const Tensor& flat, std::int64_t d) const { return flat.view({local_, hidden(), d}); }
  // [E d, f], neighbours of equal rows.
  Tensor out_view(const Tensor& flat, std::int64_t d) const { return flat.view({local_, d, width_}); }

  // i32 [count + 1]: groups of `each` rows.
  static Tensor offsets(const StepContext& ctx, std::int64_t count, std::int64_t each) {
    std::vector<std::int32_t> offset;
    for (std::int64_t i = 0; i <= count; ++i) {
      offset.push_back(static_cast<std::int32_t>(i * each));
    }
    const Tensor on_device = ctx.device().empty(DType::i32, {count + 1});
    ctx.stream.upload(on_device, offset.data());
    return on_device;
  }

  Tensor activated(const StepContext& ctx, const Tensor& h) const {
    const Tensor a = ctx.device().empty(h.dtype(), {h.dim(0), width_});
    ctx.stream.activation(a, h, activation_);
    return a;
  }

  // The exchange's plan of the slots of this rank's images: every expert gets equally many of each rank.
  ExchangePlan travels(const StepContext& ctx) const {
    if (ctx.plan.exchange() == nullptr) {
      return {};
    }
    TokenExchange& exchange = *ctx.plan.exchange();
    const std::int64_t rows = ctx.batch.sequences * slots_of_each_;
    if (exchange.equal_blocks()) {
      return exchange.plan_equal(experts_, rows);
    }
    const std::vector<std::int32_t> each(static_cast<std::size_t>(experts_), static_cast<std::int32_t>(rows));
    const Tensor counts = ctx.device().empty(DType::i32, {experts_});
    ctx.stream.upload(counts, each.data());
    return exchange.plan(counts, ctx.stream, [] {});
  }

  // Slots [images, Q, d] -> the rows of this rank's experts [R, d], expert by expert.
  Tensor sent_to_experts(const StepContext& ctx, const Tensor& slots, const ExchangePlan& plan) const {
    Stream& s = ctx.stream;
    const std::int64_t images = slots.dim(0), d = slots.dim(2), each = slots_of_each_ * d;
    const Tensor by_expert = ctx.device().empty(slots.dtype(), {experts_, images, each});
    s.swap_outer(by_expert, slots.view({images, experts_, each}));
    const Tensor rows = by_expert.view({experts_ * images * slots_of_each_, d});
    TokenExchange* const exchange = ctx.plan.exchange();
    if (exchange == nullptr) {
      return rows;
    }
    const Tensor arrived = ctx.device().empty(rows.dtype(), rows.shape());  // E / n experts of n ranks
    const std::int64_t chunk = arrived.dim(0) / exchange->chunks();
    for (int number = 0; number < exchange->chunks(); ++number) {
      exchange->to_experts(arrived.rows(number * chunk, chunk), rows, plan, number, s);
    }
    return arrived;
  }

  // The adjoint, and the way back: [R, d] -> [images, Q, d].
  Tensor sent_back(const StepContext& ctx, const Tensor& rows, const ExchangePlan& plan) const {
    Stream& s = ctx.stream;
    const std::int64_t images = ctx.batch.sequences, d = rows.dim(1), each = slots_of_each_ * d;
    Tensor returned = rows;
    if (TokenExchange* const exchange = ctx.plan.exchange(); exchange != nullptr) {
      returned = ctx.device().empty(rows.dtype(), rows.shape());
      const std::int64_t chunk = rows.dim(0) / exchange->chunks();
      for (int number = 0; number < exchange->chunks(); ++number) {
        exchange->to_tokens(returned, rows.rows(number * chunk, chunk), plan, number, s);
      }
    }
    const Tensor slots = ctx.device().empty(rows.dtype(), {images, experts_, each});
    s.swap_outer(slots, returned.view({experts_, images, each}));
    return slots.view({images, experts_ * slots_of_each_, d});
  }

  Tensor experts_backward(const StepContext& ctx, const Tensor& dmade, const Tensor& h, const Tensor& sent) const {
    Stream& s = ctx.stream;
    Device& device = ctx.device();
    const std::int64_t d = sent.dim(1);
    const Tensor of_experts = offsets(ctx, local_, sent.dim(0) / local_);
    const Tensor a = activated(ctx, h), da = device.empty(h.dtype(), a.shape()),
                 dh = device.empty(h.dtype(), h.shape());
    s.grouped_gemm(da, dmade, out_view(out_.weight(), d), of_experts, {});
    s.activation_backward(dh, da, h, activation_);
    if (const Tensor grad = out_.wanted_grad(); grad.defined()) {
      s.grouped_gemm_tn(out_view(grad, d), dmade, a, of_experts, 1);
    }
    if (const Tensor grad = in_.wanted_grad(); grad.defined()) {
      s.grouped_gemm_tn(in_view(grad, d), dh, sent, of_experts, 1);
    }
    const Tensor dsent = device.empty(h.dtype(), sent.shape());
    s.grouped_gemm(dsent, dh, in_view(in_.weight(), d), of_experts, {});
    return dsent;
  }

  ParamRef slots_;        // [Q, d]
  ParamMatrix in_, out_;  // of this rank's experts, [E f, d] and [E d, f]
  Activation activation_;
  std::int64_t experts_, slots_of_each_, local_ = 0, width_ = 0;
};

}  // namespace

void add_soft_experts(Link& link, const Settings& s, const std::string& stem) {
  const std::int64_t d = s.model.d_model, f = d_expert_of(s), slots = s.moe.experts * slots_of(s);
  const float std = static_cast<float>(s.model.init_std);
  ParamSpec phi{.name = stem + ".slots.weight", .global = {slots, d}, .region = Region::experts, .std = std};
  phi.split[0] = Dim::ffn;
  phi.units[0] = 1;
  phi.repeats = true;
  link.parameters.push_back({.name = link.name + " slots", .params = {phi}});
  LayerSpecs experts{.name = link.name + " experts", .params = {}};
  const auto matrix = [&](std::int64_t e, const char* name, bool in) {
    ParamSpec spec{.name = expert_name(stem, e, name),
                   .global = in ? Shape{f, d} : Shape{d, f},
                   .region = Region::experts,
                   .expert = e,
                   .std = in ? std : residual_std(s)};
    spec.split[in ? 0 : 1] = Dim::ffn;
    experts.params.push_back(spec);
  };
  for (std::int64_t e = 0; e < s.moe.experts; ++e) {
    matrix(e, "w1", true);
    if (is_gated(s.model.activation)) {
      matrix(e, "w3", true);
    }
  }
  for (std::int64_t e = 0; e < s.moe.experts; ++e) {
    matrix(e, "w2", false);
  }
  link.parameters.push_back(std::move(experts));
  // Of one token: its share of the image's slots, and three products with all of them.
  const double share = static_cast<double>(slots) / static_cast<double>(s.data.sequence_length);
  const double products = is_gated(s.model.activation) ? 6 : 4;
  link.flops += share * products * static_cast<double>(d * f) + 6 * static_cast<double>(slots * d);
}

std::unique_ptr<PartLayer> make_soft_experts(const std::string& stem, const Parameters& parameters, const Plan& plan) {
  return std::make_unique<SoftExperts>(stem, parameters, plan);
}

void require_whole_images(const Plan& plan) {
  for (const AxisId axis : plan.axes_of(Dim::position, Region::experts)) {
    const std::string& name = plan.mesh().axes()[axis].name;
    throw ConfigError(
        fmt::format("moe.router: \"soft\" mixes the tokens of whole images, and axis '{}' divides them "
                    "where experts are\nleave the axis out, or what folds experts over it",
                    name));
  }
}

}  // namespace orthant::images
