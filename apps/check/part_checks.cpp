#include <orthant/part.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "apps/check/kind_checks.h"
#include "apps/verify/verify.h"
#include "core/arch/decoder.h"
#include "core/arch/param_specs.h"
#include "core/data/source.h"
#include "core/session/session.h"
#include "core/train/trainer.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

struct Stood {
  const Part& part;
  PartPlace place;
};
Stood stood(const KindUnderTest& kind, const Settings& settings, int block) {
  if (kind.noun == AttentionPart::noun) {
    return {attention_part(settings), attention_place(settings, block)};
  }
  return {ffn_part(settings), ffn_place(settings, block)};
}

bool same(const std::vector<ParamSpec>& a, const std::vector<ParamSpec>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const ParamSpec& x, const ParamSpec& y) {
    return x.name == y.name && x.global == y.global && x.region == y.region && x.split[0] == y.split[0] &&
           x.split[1] == y.split[1] && x.repeats == y.repeats && x.init == y.init && x.std == y.std;
  });
}

}  // namespace

Finding check_part_parameters(const KindUnderTest& kind) {
  const Config config = kind.experiment();
  const Settings& settings = config.settings;
  for (int block = 0; block < settings.model.layers; ++block) {
    const Stood here = stood(kind, settings, block);
    const std::vector<ParamSpec> specs = here.part.parameters(here.place);
    for (const ParamSpec& spec : specs) {
      if (const std::string wrong = wrong_part_spec(spec, here.place.stem); !wrong.empty()) {
        return Finding::failed(wrong);
      }
    }
    if (!same(specs, here.part.parameters(here.place))) {
      return Finding::failed(fmt::format("block {} has other parameters when asked again", block));
    }
    const double flops = here.part.flops(settings, block);
    if (!std::isfinite(flops) || flops <= 0) {
      return Finding::failed(
          fmt::format("a token costs {} operations in block {}: pipelines are cut by it", flops, block));
    }
  }
  std::set<std::string> names;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      if (!names.insert(spec.name).second) {
        return Finding::failed(fmt::format("two parameters have the name '{}'", spec.name));
      }
    }
  }
  return Finding::ok(
      fmt::format("{} in block 0", stood(kind, settings, 0).part.parameters(stood(kind, settings, 0).place).size()));
}

namespace {

constexpr double tolerance = 1e-2;  // of the derivative; a wrong factor or a missing part is far larger
constexpr double rounding = 5e-5;   // of two losses that differ by rounding alone, at the largest step
constexpr double largest_step = 2e-2;

// One rank whose weights can be moved.
class Probe {
 public:
  Probe(const Config& config, Communicator& communicator)
      : device_(make_device(config.settings.run.device, 1)),
        stream_(device_->make_main_stream()),
        source_(make_batch_source(config.settings)),
        session_(config) {
    session_.plan(communicator.rank(), &communicator, device_.get());
    trainer_.emplace(session_.plan(), *stream_, *source_);
    trainer_->gradients(0);
    for (const auto& group : trainer_->parameters().groups()) {
      for (const Param& param : group->params) {
        parameters_.push_back({group.get(), &param, values(group->master, param), values(group->grad, param)});
      }
    }
  }

  struct Moved {
    ParamGroup* group;
    const Param* param;
    std::vector<float> weight, grad;
  };
  const std::vector<Moved>& parameters() const { return parameters_; }

  // d loss / d h at w + h u, by differences of fourth order.
  double derivative(const Moved& of, const std::vector<double>& u, double h) {
    const double wide = (loss(of, u, h) - loss(of, u, -h)) / (2 * h);
    const double narrow = (loss(of, u, h / 2) - loss(of, u, -h / 2)) / h;
    put(of, of.weight);
    return (4 * narrow - wide) / 3;
  }

 private:
  std::vector<float> values(const Tensor& flat, const Param& param) {
    std::vector<float> host(param.elements());
    stream_->download(host.data(), flat.slice(param.begin, {param.elements()}));
    return host;
  }
  void put(const Moved& of, const std::vector<float>& weight) {
    stream_->upload(of.group->master.slice(of.param->begin, {of.param->elements()}), weight.data());
    trainer_->parameters().refresh_weights(session_.plan(), Change::loaded, {.stream = *stream_});
    stream_->synchronize();
  }
  double loss(const Moved& of, const std::vector<double>& u, double h) {
    std::vector<float> moved(of.weight.size());
    for (std::size_t i = 0; i < moved.size(); ++i) {
      moved[i] = static_cast<float>(static_cast<double>(of.weight[i]) + h * u[i]);
    }
    put(of, moved);
    return trainer_->gradients(0).loss;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<BatchSource> source_;
  Session session_;
  std::optional<Trainer> trainer_;
  std::vector<Moved> parameters_;
};

double length(const std::vector<double>& v) {
  double squares = 0;
  for (double x : v) {
    squares += x * x;
  }
  return std::sqrt(squares);
}

// A unit vector, half along the gradient, half anywhere: a gradient that is wrong by a factor shows as well as one that
// misses a part.
std::vector<double> direction(const std::vector<float>& grad, std::uint32_t site) {
  std::vector<double> along(grad.begin(), grad.end()), anywhere(grad.size());
  for (std::size_t i = 0; i < grad.size(); ++i) {
    anywhere[i] = static_cast<double>(normal({.seed = 11, .site = site}, i));
  }
  const double norm = length(along), other = length(anywhere);
  for (std::size_t i = 0; i < grad.size(); ++i) {
    along[i] = (norm > 0 ? along[i] / norm : 0) + anywhere[i] / other;
  }
  const double whole = length(along);
  for (double& x : along) {
    x /= whole;
  }
  return along;
}

// What is wrong, or empty; `largest` becomes the largest difference, of the derivative.
std::string wrong_gradient(Probe& probe, double& largest) {
  std::uint32_t site = 0;
  for (const Probe::Moved& of : probe.parameters()) {
    const std::vector<double> u = direction(of.grad, ++site);
    double told = 0;
    for (std::size_t i = 0; i < u.size(); ++i) {
      told += u[i] * static_cast<double>(of.grad[i]);
    }
    // Smaller steps meet fewer kinks (of relu), and round more.
    double measured = 0;
    const auto agrees = [&](double h) {
      measured = probe.derivative(of, u, h);
      return std::abs(told - measured) <= tolerance * std::abs(measured) + rounding * largest_step / h;
    };
    if (!agrees(largest_step) && !agrees(largest_step / 4)) {
      return fmt::format("gradient of '{}' along some direction: {:.5g}, but the loss changes by {:.5g}",
                         of.param->spec.name, told, measured);
    }
    if (std::abs(measured) * tolerance > rounding) {  // else rounding is all that would show
      largest = std::max(largest, std::abs(told / measured - 1));
    }
  }
  return "";
}

}  // namespace

Finding check_gradients(const KindUnderTest& kind) {
  const Config config =
      one_rank(kind.experiment({"model.layers=2", "moe.experts=0", "model.dropout=0", "model.tie_embeddings=false",
                                "batch.sequences=2", "batch.micro_batch=0", "model.init_std=0.3",
                                R"(optimizer.master_weights="fp32")"}));  // f32, to be moved by a little
  std::string wrong;
  double largest = 0;
  run_threads(1, [&](Communicator& communicator) {
    Probe probe(config, communicator);
    wrong = wrong_gradient(probe, largest);
  });
  return wrong.empty()
             ? Finding::ok(fmt::format("central differences of the loss, within {:.2g} % ({:g} % are allowed)",
                                       100 * largest, 100 * tolerance))
             : Finding::failed(wrong);
}

Finding check_part_recompute(const KindUnderTest& kind) {
  const Config plain = one_rank(kind.experiment()), again = one_rank(kind.experiment({"memory.recompute=\"full\""}));
  const std::string different = first_difference_in_bits(take_snapshot(again, 2), take_snapshot(plain, 2));
  return different.empty() ? Finding::ok("blocks computed again")
                           : Finding::failed(different + " differs with memory.recompute = \"full\"");
}

}  // namespace orthant
