// A kind of model of one's own: a decoder whose blocks are reminded of the tokens. The first block also takes down a
// few numbers of each token, by a matrix M, and each later block sees them again, by a matrix R of its own:
//
//   m = M x_0        x_1 = block_0(x_0)        x_(i+1) = block_i(x_i + R_i m)
//
//   [model]
//   kind = "reminded"
//   [plugins.reminded]
//   width = 8            # numbers of each token
//
// Links and layers are those of the core's decoder. m is a second tensor that the chain passes on, from the first block
// to the last: wherever a pipeline cuts between them, both travel. Nothing here knows of ranks.
// [plugins.reminded] fault plants a mistake, for the tests of `orthant plugins --check`.
#include <orthant/catalogue.h>
#include <orthant/model.h>
#include <orthant/part.h>
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace orthant;

struct Options {
  std::int64_t width;
  std::string fault;  // empty: none
};

std::string matrix_of(const Link& link) {
  return "model.layers." + std::to_string(link.block) + ".reminder.weight";
}

class FirstBlock final : public Layer {
 public:
  FirstBlock(std::unique_ptr<Layer> block, ParamRef matrix, std::string fault)
      : block_(std::move(block)), matrix_(matrix), fault_(std::move(fault)) {}

  Bundle forward(const StepContext& ctx, const Bundle& in, Saved& saved) override {
    const Tensor& x = in.front();
    saved.push(x);
    Bundle out = block_->forward(ctx, in, saved);
    out.push_back(linear(ctx, x, matrix_.weight()));
    return out;
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    const Tensor dx = block_->backward(ctx, {dy[0]}, saved).front(), x = saved.pop();
    const Tensor reminded = linear_backward(ctx, dy[1], x, matrix_.weight(), matrix_.wanted_grad());
    if (fault_ != "forgets") {
      ctx.stream.add(dx, reminded);
    }
    return {dx};
  }

 private:
  std::unique_ptr<Layer> block_;
  ParamRef matrix_;  // [width, d]
  std::string fault_;
};

class RemindedBlock final : public Layer {
 public:
  RemindedBlock(std::unique_ptr<Layer> block, ParamRef matrix, bool last)
      : block_(std::move(block)), matrix_(matrix), last_(last) {}

  Bundle forward(const StepContext& ctx, const Bundle& in, Saved& saved) override {
    const Tensor x = linear(ctx, in[1], matrix_.weight());
    ctx.stream.add(x, in[0]);
    saved.push(in[1]);
    Bundle out = block_->forward(ctx, {x}, saved);
    if (!last_) {
      out.push_back(in[1]);
    }
    return out;
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    const Tensor dx = block_->backward(ctx, {dy[0]}, saved).front(), m = saved.pop();
    const Tensor dm = linear_backward(ctx, dx, m, matrix_.weight(), matrix_.wanted_grad());
    if (!last_) {
      ctx.stream.add(dm, dy[1]);
    }
    return {dx, dm};
  }

 private:
  std::unique_ptr<Layer> block_;
  ParamRef matrix_;  // [d, width]
  bool last_;
};

class Reminded final : public ModelKind {
 public:
  explicit Reminded(Options options) : options_(std::move(options)) {}

  std::vector<Refusal> refusals(const Settings& s) const override {
    if (s.model.layers > 1) {
      return {};
    }
    return {{.keys = {"model.layers"},
             .message = "[model] layers: kind \"reminded\" reminds all blocks but the first, and there is one",
             .advice = "write layers = 2 at least"}};
  }

  std::vector<Link> links(const Settings& s) const override {
    std::vector<Link> links = decoder(s).links(s);
    for (Link& link : links) {
      if (!is_block(link)) {
        continue;
      }
      const std::int64_t d = s.model.d_model, width = options_.width;
      link.parameters.push_back({.name = link.name + " reminder"});
      link.parameters.back().params = {{.name = matrix_of(link),
                                        .global = link.block == 0 ? Shape{width, d} : Shape{d, width},
                                        .region = Region::norm,
                                        .init = Init::normal,
                                        .std = static_cast<float>(s.model.init_std)}};
      link.flops += 2 * static_cast<double>(d) * static_cast<double>(width);
      if (!is_last(link, s)) {
        link.passes.push_back(
            {.name = options_.fault == "same_name" ? "x" : "reminder", .columns = width, .dtype = compute_type(s)});
      }
    }
    return links;
  }

  std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const override {
    const Settings& s = plan.settings();
    std::unique_ptr<Layer> layer = decoder(s).make(link, parameters, plan);
    if (!is_block(link)) {
      return layer;
    }
    const ParamRef matrix = parameters.ref(matrix_of(link));
    if (link.block == 0) {
      return std::make_unique<FirstBlock>(std::move(layer), matrix, options_.fault);
    }
    return std::make_unique<RemindedBlock>(std::move(layer), matrix, is_last(link, s));
  }

 private:
  static const ModelKind& decoder(const Settings& s) { return s.catalogue->get<ModelKind>("decoder"); }
  // Not a depth of multi-token prediction, which has a block too.
  static bool is_block(const Link& link) { return link.block >= 0 && !link.objective; }
  static bool is_last(const Link& link, const Settings& s) { return link.block + 1 == s.model.layers; }

  Options options_;
};

class RemindedPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "width",
             .default_value = std::int64_t{8},
             .help = "Numbers of each token that later blocks see.",
             .minimum = 1,
             .maximum = 65536},
            {.name = "fault",
             .default_value = std::string(),
             .help = "A mistake to make; empty: none.",
             .choices = {"", "forgets", "same_name"}}};
  }
  void add_to(Catalogue& catalogue, const Table& table) override {
    catalogue.add<ModelKind>("reminded", "A decoder whose blocks see numbers of the embedding again.",
                             std::make_shared<Reminded>(Options{table.integer("width"), table.text("fault")}));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("reminded", RemindedPlugin)
