#include "mbconv.h"

#include <optional>
#include <utility>
#include <vector>

#include <orthant/blocks.h>
#include <orthant/part.h>

#include "convolution.h"
#include "dense_rows.h"
#include "settings.h"

namespace orthant::images {
namespace {

Tensor like(const Tensor& t) {
  return t.device().empty(t.dtype(), t.shape());
}
Tensor gelu(const Tensor& h, Stream& s) {
  const Tensor a = like(h);
  s.activation(a, h, Activation::gelu);
  return a;
}
Tensor gelu_backward(const Tensor& da, const Tensor& h, Stream& s) {
  const Tensor dh = like(h);
  s.activation_backward(dh, da, h, Activation::gelu);
  return dh;
}

// The depthwise convolution of any type, in fp32.
struct Depthwise {
  static Tensor forward(const Tensor& x, const Tensor& w, const Tensor& rows, Stream& s) {
    const Tensor y = s.device().empty(DType::f32, {rows.elements() / places, x.dim(1)});
    const Tensor wide = as_type(x, DType::f32, s), weight = as_type(w, DType::f32, s);
    s.device().asynchronous() ? depthwise_by_rows(y, wide, weight, rows, s) : depthwise(y, wide, weight, rows, s);
    return as_type(y, x.dtype(), s);
  }
  static Tensor backward(const Tensor& dy, const Tensor& dw, const Tensor& x, const Tensor& w, const Tensor& rows,
                         Stream& s) {
    const Tensor dx = s.device().empty(DType::f32, x.shape());
    const Tensor d = as_type(dy, DType::f32, s), wide = as_type(x, DType::f32, s), weight = as_type(w, DType::f32, s);
    s.device().asynchronous() ? depthwise_by_rows_backward(dx, dw, d, wide, weight, rows, s)
                              : depthwise_backward(dx, dw, d, wide, weight, rows, s);
    return as_type(dx, x.dtype(), s);
  }
};

// The mean of four pixels as a depthwise convolution: f32 [9, c].
Tensor mean_of_four(std::int64_t channels, Stream& s) {
  const Tensor w = s.device().empty(DType::f32, {places, channels});
  s.fill(w, 0);
  for (const std::int64_t place : {4, 5, 7, 8}) {
    s.fill(w.rows(place, 1), 0.25);
  }
  return w;
}

// Each channel of an image times a number between 0 and 1 that all its pixels decide.
class Excite {
 public:
  Excite(const std::string& stem, const Parameters& parameters)
      : in_(parameters, stem + ".squeeze"), out_(parameters, stem + ".excite") {}

  // x f [pixels, c]; image i32 [pixels].
  Tensor forward(const StepContext& ctx, const Tensor& x, const Tensor& image, Saved& saved) const {
    Stream& s = ctx.stream;
    const Tensor mean = sums(ctx, x, x.dtype());
    s.scale(mean, static_cast<float>(ctx.batch.sequences) / static_cast<float>(x.dim(0)));
    const Tensor h = in_.forward(ctx, mean), a = gelu(h, s), v = out_.forward(ctx, a);
    // 1 / (1 + exp(-v)) = (1 + tanh(v / 2)) / 2
    s.scale(v, 0.5f);
    const Tensor t = like(v), factor = like(v);
    s.activation(t, v, Activation::tanh);
    s.fill(factor, 0.5);
    s.scale(t, 0.5f);
    s.add(factor, t);
    const Tensor y = like(x), of_pixels = spread(factor, image, x, s);
    s.copy(y, x);
    s.multiply(y, of_pixels);
    for (const Tensor& kept : {x, mean, h, factor}) {
      saved.push(kept);
    }
    return y;
  }
  Tensor backward(const StepContext& ctx, const Tensor& dy, const Tensor& image, Saved& saved) const {
    Stream& s = ctx.stream;
    const Tensor factor = saved.pop(), h = saved.pop(), mean = saved.pop(), x = saved.pop();
    const Tensor by_pixel = like(x);
    s.copy(by_pixel, x);
    s.multiply(by_pixel, dy);
    const Tensor dv = sums(ctx, by_pixel, factor.dtype());
    // times factor (1 - factor)
    const Tensor slope = like(factor), square = like(factor);
    s.copy(slope, factor);
    s.copy(square, factor);
    s.multiply(square, factor);
    s.scale(square, -1);
    s.add(slope, square);
    s.multiply(dv, slope);
    const Tensor dmean = in_.backward(ctx, gelu_backward(out_.backward(ctx, dv, gelu(h, s)), h, s), mean);
    s.scale(dmean, static_cast<float>(ctx.batch.sequences) / static_cast<float>(x.dim(0)));
    const Tensor dx = spread(factor, image, x, s);
    s.multiply(dx, dy);
    s.add(dx, spread(dmean, image, x, s));
    return dx;
  }

 private:
  // f [images, c]: sums over the pixels of each image, in fp32.
  static Tensor sums(const StepContext& ctx, const Tensor& x, DType type) {
    Stream& s = ctx.stream;
    const std::int64_t images = ctx.batch.sequences, each = x.dim(0) / images;
    std::vector<std::int32_t> offset;
    for (std::int64_t i = 0; i <= images; ++i) {
      offset.push_back(static_cast<std::int32_t>(i * each));
    }
    const Tensor of_images = ctx.device().empty(DType::i32, {images + 1});
    s.upload(of_images, offset.data());
    const Tensor ones = ctx.device().empty(x.dtype(), {x.dim(0), 1});
    s.fill(ones, 1);
    const Tensor sum = ctx.device().empty(DType::f32, {images, 1, x.dim(1)});
    s.grouped_gemm_tn(sum, ones, x, of_images, 0);
    return as_type(sum.view({images, x.dim(1)}), type, s);
  }
  static Tensor spread(const Tensor& of_images, const Tensor& image, const Tensor& x, Stream& s) {
    Tensor all = like(x);
    s.embedding(all, of_images, image, false);
    return all;
  }

  DenseRows in_, out_;
};

class MbConv final : public Layer {
 public:
  MbConv(const ConvShape& shape, const std::string& stem, const Parameters& parameters, const Plan& plan)
      : shape_(shape),
        norm_(make_norm(stem + ".norm", parameters, plan)),
        expand_(parameters, stem + ".expand"),
        depthwise_(parameters.ref(stem + ".depthwise.weight")),
        excite_(stem, parameters),
        project_(parameters, stem + ".project") {
    if (shape.changes()) {
      short_.emplace(parameters, stem + ".short");
    }
  }

  Bundle forward(const StepContext& ctx, const Bundle& in, Saved& saved) override {
    Stream& s = ctx.stream;
    const Tensor& x = in.front();
    const std::int64_t cells = x.dim(0), pixels = cells * shape_.side * shape_.side;
    const Tensor rows = neighbours(taps(ctx), s), image = image_of_pixels(taps(ctx), s);
    const Tensor flat = x.view({pixels, shape_.from});
    const Tensor n = norm_->forward(ctx, flat, saved), h = expand_.forward(ctx, n);
    const Tensor g = Depthwise::forward(gelu(h, s), depthwise_.weight(), rows, s);
    for (const Tensor& kept : {rows, n, h, g}) {
      saved.push(kept);
    }
    const Tensor z = excite_.forward(ctx, gelu(g, s), image, saved);
    const Tensor y = project_.forward(ctx, z);
    saved.push(image);
    saved.push(z);
    if (short_.has_value()) {
      const Tensor pooled = shape_.stride > 1 ? Depthwise::forward(flat, mean_of_four(shape_.from, s), rows, s) : flat;
      saved.push(pooled);
      s.add(y, short_->forward(ctx, pooled));
    } else {
      s.add(y, flat);
    }
    return {y.view({cells, shape_.pixels() * shape_.to})};
  }

  Bundle backward(const StepContext& ctx, const Bundle& from, Saved& saved) override {
    Stream& s = ctx.stream;
    const std::int64_t cells = from.front().dim(0);
    const Tensor dy = from.front().view({cells * shape_.pixels(), shape_.to});
    const Tensor pooled = short_.has_value() ? saved.pop() : Tensor();
    const Tensor z = saved.pop(), image = saved.pop();
    const Tensor dag = excite_.backward(ctx, project_.backward(ctx, dy, z), image, saved);
    const Tensor g = saved.pop(), h = saved.pop(), n = saved.pop(), rows = saved.pop();
    const Tensor dg = gelu_backward(dag, g, s);
    const Tensor da = Depthwise::backward(dg, depthwise_.wanted_grad(), gelu(h, s), depthwise_.weight(), rows, s);
    const Tensor dn = expand_.backward(ctx, gelu_backward(da, h, s), n);
    const Tensor dx = norm_->backward(ctx, dn, saved);
    s.add(dx, short_backward(ctx, dy, pooled, rows, dx));
    return {dx.view({cells, shape_.side * shape_.side * shape_.from})};
  }

 private:
  Taps taps(const StepContext& ctx) const { return {ctx.batch.sequences, shape_.grid, shape_.side, shape_.stride}; }
  Tensor short_backward(const StepContext& ctx, const Tensor& dy, const Tensor& pooled, const Tensor& rows,
                        const Tensor& dx) const {
    if (!short_.has_value()) {
      return dy;
    }
    const Tensor dpooled = short_->backward(ctx, dy, pooled);
    return shape_.stride == 1
               ? dpooled
               : Depthwise::backward(dpooled, {}, like(dx), mean_of_four(shape_.from, ctx.stream), rows, ctx.stream);
  }

  ConvShape shape_;
  std::unique_ptr<PartLayer> norm_;
  DenseRows expand_;
  ParamRef depthwise_;  // [9, hidden]
  Excite excite_;
  DenseRows project_;
  std::optional<DenseRows> short_;
};

constexpr const char* stem_in = "model.stem.0";
constexpr const char* stem_out = "model.stem.1";

class Stem final : public Layer {
 public:
  Stem(const ConvShape& shape, const Parameters& parameters)
      : shape_(shape), in_(parameters, stem_in), out_(parameters, stem_out) {}

  Bundle forward(const StepContext& ctx, const Bundle&, Saved& saved) override {
    Stream& s = ctx.stream;
    const Tensor columns = first_columns(ctx);
    const Tensor h = in_.forward(ctx, columns), a = gelu(h, s);
    const Tensor rows = neighbours(second(ctx), s), around = columns_of(ctx, a, rows);
    const Tensor y = out_.forward(ctx, around);
    for (const Tensor& kept : {columns, h, rows, around}) {
      saved.push(kept);
    }
    return {y.view({ctx.batch.tokens(), shape_.pixels() * shape_.to})};
  }
  Bundle backward(const StepContext& ctx, const Bundle& from, Saved& saved) override {
    Stream& s = ctx.stream;
    const Tensor around = saved.pop(), rows = saved.pop(), h = saved.pop(), columns = saved.pop();
    const Tensor dy = from.front().view({h.dim(0), shape_.to});
    const Tensor daround = out_.backward(ctx, dy, around);
    const Tensor da = ctx.device().empty(DType::f32, h.shape());
    s.fill(da, 0);
    gather_places_backward(da, daround, rows, s);
    in_.backward_of_input(ctx, gelu_backward(as_type(da, h.dtype(), s), h, s), columns);
    return {};
  }

 private:
  Taps second(const StepContext& ctx) const {
    return {ctx.batch.sequences, shape_.grid, shape_.side / shape_.stride, 1};
  }
  static Tensor columns_of(const StepContext& ctx, const Tensor& x, const Tensor& rows) {
    Tensor columns = ctx.device().empty(x.dtype(), {rows.elements() / places, places * x.dim(1)});
    gather_places(columns, x, rows, ctx.stream);
    return columns;
  }
  // The pixels of a patch stand channel by channel: as [patches, channels, pixels] with these turned, they are rows of
  // channels.
  Tensor first_columns(const StepContext& ctx) const {
    Stream& s = ctx.stream;
    const std::int64_t cells = ctx.batch.tokens(), pixels = shape_.side * shape_.side;
    std::vector<std::int32_t> number;
    for (std::int64_t cell = 0; cell < cells; ++cell) {
      for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
        for (std::int64_t c = 0; c < shape_.from; ++c) {
          number.push_back(static_cast<std::int32_t>((cell * shape_.from + c) * pixels + pixel));
        }
      }
    }
    const Tensor order = ctx.device().empty(DType::i32, {static_cast<std::int64_t>(number.size())});
    s.upload(order, number.data());
    const Tensor turned = ctx.device().empty(DType::f32, {order.elements(), 1});
    s.embedding(turned, ctx.batch.value.view({order.elements(), 1}), order, false);
    const Tensor x = as_type(turned.view({cells * pixels, shape_.from}), ctx.compute(), s);
    return columns_of(ctx, x, neighbours({ctx.batch.sequences, shape_.grid, shape_.side, shape_.stride}, s));
  }

  ConvShape shape_;
  DenseRows in_, out_;
};

Slot slot_of(const Settings& s, const ConvShape& shape) {
  return {.name = "x", .columns = shape.pixels() * shape.to, .dtype = compute_type(s)};
}

double product(double rows, std::int64_t a, std::int64_t b) {
  return 2 * rows * static_cast<double>(a * b);
}

}  // namespace

Link mbconv_link(const Settings& s, const ConvShape& shape, const std::string& name, const std::string& stem) {
  Link link{.name = name};
  LayerSpecs specs{.name = name, .params = {}};
  Settings narrow = s;  // a norm of so many channels
  narrow.model.d_model = shape.from;
  specs.params = norm_parameters(narrow, stem + ".norm");
  DenseRows::specs(specs.params, stem + ".expand", shape.hidden(), shape.from);
  specs.params.push_back({.name = stem + ".depthwise.weight",
                          .global = {places, shape.hidden()},
                          .region = Region::norm,
                          .std = 1.0f / 3});
  DenseRows::specs(specs.params, stem + ".squeeze", shape.squeezed(), shape.hidden());
  DenseRows::specs(specs.params, stem + ".excite", shape.hidden(), shape.squeezed());
  DenseRows::specs(specs.params, stem + ".project", shape.to, shape.hidden());
  if (shape.changes()) {
    DenseRows::specs(specs.params, stem + ".short", shape.to, shape.from);
  }
  link.parameters.push_back(std::move(specs));
  const double entering = static_cast<double>(shape.side * shape.side), leaving = static_cast<double>(shape.pixels());
  link.flops = product(entering, shape.from, shape.hidden()) + product(leaving, places, shape.hidden()) +
               product(leaving, shape.hidden(), shape.to) +
               (shape.changes() ? product(leaving, shape.from, shape.to) : 0);
  link.touched = 4 * (entering + leaving) * static_cast<double>(shape.hidden());
  link.passes = {slot_of(s, shape)};
  return link;
}

std::unique_ptr<Layer> make_mbconv(const ConvShape& shape, const std::string& stem, const Parameters& parameters,
                                   const Plan& plan) {
  return recomputed(std::make_unique<MbConv>(shape, stem, parameters, plan));
}

Link stem_link(const Settings& s, const ConvShape& shape) {
  Link link{.name = "stem"};
  LayerSpecs specs{.name = "stem", .params = {}};
  DenseRows::specs(specs.params, stem_in, shape.to, places * shape.from);
  DenseRows::specs(specs.params, stem_out, shape.to, places * shape.to);
  link.parameters.push_back(std::move(specs));
  const double pixels = static_cast<double>(shape.pixels());
  link.flops = product(pixels, places * (shape.from + shape.to), shape.to);
  link.touched = 2 * pixels * static_cast<double>(places * shape.to);
  link.passes = {slot_of(s, shape)};
  return link;
}

std::unique_ptr<Layer> make_stem(const ConvShape& shape, const Parameters& parameters) {
  return std::make_unique<Stem>(shape, parameters);
}

}  // namespace orthant::images
