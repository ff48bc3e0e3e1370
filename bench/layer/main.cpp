// orthant-bench: one routed layer at the shapes of published models, step by step and whole, on any device.
//
// Times are medians. The ceilings, a large copy and large products, are measured first, on the same device in the same
// run; a step's floor is the larger of its products at the one and its bytes at the other.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/layer/problem.h"
#include "bench/layer/timing.h"

namespace orthant::bench {
namespace {

struct Options {
  std::string device = "cpu", dtype = "bf16", json;
  std::vector<std::string> shapes;
  std::int64_t tokens = 0;  // 0: the shape's own
  int threads = 2, samples = 7;
  double sample_seconds = 0.05;
  bool skewed_only = false, uniform_only = false, whole_only = false;
};

struct Ceilings {
  double bytes_per_second = 0, flops_per_second = 0;
};

// Well beyond the caches of a GPU or a CPU; the CUDA kernels on the CPU are for trying only.
Ceilings ceilings(Device& device, Stream& s, DType dtype, const Timer& time) {
  const bool gpu = device.name() == "cuda", simt = device.name() == "simt";
  const std::int64_t bytes = std::int64_t{1} << (gpu ? 31 : simt ? 16 : 27);
  Ceilings found;
  {
    const Tensor from = device.empty(DType::u8, {bytes}), to = device.empty(DType::u8, {bytes});
    s.fill(from, 1);
    found.bytes_per_second = 2.0 * static_cast<double>(bytes) / time([&] { s.copy(to, from); });
  }
  const std::int64_t m = gpu ? 8192 : simt ? 64 : 1024;
  const Tensor wide = device.empty(DType::f32, {m, m}), a = device.empty(dtype, {m, m}),
               c = device.empty(dtype, {m, m});
  s.init_normal(wide, {.seed = 2}, 1, {.global_columns = m});
  s.cast(a, wide);
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(m) * static_cast<double>(m);
  found.flops_per_second = flops / time([&] { s.gemm(c, a, a, {.transpose_b = true}); });
  return found;
}

double floor_seconds(const Step& step, const Ceilings& ceiling) {
  return std::max(step.flops / ceiling.flops_per_second, step.bytes / ceiling.bytes_per_second);
}

// One line of the table, and of the JSON.
void report(nlohmann::ordered_json& rows, const Step& step, double seconds, double floor, double of_layer) {
  std::printf("  %-22s %10.1f us  %8.2f TFLOP/s  %8.1f GB/s  floor %3.0f %%", step.name.c_str(), seconds * 1e6,
              step.flops / seconds * 1e-12, step.bytes / seconds * 1e-9, 100 * floor / seconds);
  if (of_layer > 0) {
    std::printf("  layer %4.1f %%", 100 * seconds / of_layer);
  }
  std::printf("\n");
  std::fflush(stdout);
  rows.push_back({{"step", step.name},
                  {"seconds", seconds},
                  {"flops", step.flops},
                  {"bytes", step.bytes},
                  {"share_of_floor", floor / seconds}});
}

nlohmann::ordered_json measure(Device& device, Stream& s, const LayerShape& shape, DType dtype, bool skewed,
                               const Options& options, const Ceilings& ceiling, const Timer& time) {
  LayerProblem layer(device, s, shape, dtype, skewed);
  const double load = layer.load_max_over_mean();
  std::printf("%s: T %lld, d %lld, n %lld, E %lld, K %lld, %s routing (fullest expert %.2f of the mean)\n",
              std::string(shape.name).c_str(), static_cast<long long>(shape.tokens), static_cast<long long>(shape.d),
              static_cast<long long>(shape.n), static_cast<long long>(shape.experts),
              static_cast<long long>(shape.top_k), skewed ? "skewed" : "uniform", load);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const double forward = time([&] { layer.forward(); });
  const double both = time([&] {
    layer.forward();
    layer.backward();
  });
  const double flops = layer.forward_flops();
  double routing = 0;
  std::vector<Step> steps = layer.steps();
  for (const Step& step : steps) {
    if (options.whole_only) {
      break;
    }
    const double seconds = time(step.run);
    routing += step.name == "router product" || step.name == "gate" || step.name == "dispatch plan" ? seconds : 0;
    report(rows, step, seconds, floor_seconds(step, ceiling), both);
  }
  report(rows, {.name = "layer forward", .run = {}, .flops = flops, .bytes = 0}, forward,
         flops / ceiling.flops_per_second, 0);
  report(rows, {.name = "layer forward+backward", .run = {}, .flops = 3 * flops, .bytes = 0}, both,
         3 * flops / ceiling.flops_per_second, 0);
  if (!options.whole_only) {
    std::printf("  router and metadata: %.1f %% of the forward pass\n", 100 * routing / forward);
  }
  return {{"shape", shape.name},
          {"tokens", shape.tokens},
          {"routing", skewed ? "skewed" : "uniform"},
          {"load_max_over_mean", load},
          {"steps", rows}};
}

std::vector<LayerShape> chosen_shapes(const Options& options) {
  std::vector<LayerShape> chosen;
  for (const std::string& name : options.shapes) {
    const auto found = std::find_if(layer_shapes.begin(), layer_shapes.end(),
                                    [&](const LayerShape& shape) { return shape.name == name; });
    require(found != layer_shapes.end(), "no shape is called \"{}\": --list shows them", name);
    chosen.push_back(*found);
  }
  for (const LayerShape& shape : layer_shapes) {
    if (options.shapes.empty() && shape.name.substr(0, 4) != "tiny") {
      chosen.push_back(shape);
    }
  }
  for (LayerShape& shape : chosen) {
    shape.tokens = options.tokens > 0 ? options.tokens : shape.tokens;
    require(shape.tokens % std::min(shape.tokens, sequence_tokens) == 0, "{} tokens are not whole sequences of {}",
            shape.tokens, sequence_tokens);
  }
  return chosen;
}

int run(const Options& options) {
  const std::vector<LayerShape> shapes = chosen_shapes(options);
  require(options.sample_seconds > 0 && options.sample_seconds <= 3600,
          "--seconds is a time of a sample above 0, up to 3600, not {}", options.sample_seconds);
  require(options.dtype == "bf16" || options.dtype == "fp32", "--dtype is bf16 or fp32, not {}", options.dtype);
  const DType dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32;
  const std::unique_ptr<Device> device = make_device(options.device, options.threads);
  const std::unique_ptr<Stream> stream = device->make_main_stream();
  const Timer time(*stream, options.sample_seconds, options.samples);
  if (!options.json.empty()) {
    require(static_cast<bool>(std::ofstream(options.json, std::ios::app)), "cannot write {}", options.json);
  }
  std::printf("measuring a large copy and a large product\n");
  std::fflush(stdout);
  const Ceilings ceiling = ceilings(*device, *stream, dtype, time);
  std::printf("device %s, %s: copy %.0f GB/s (read and written), product %.1f TFLOP/s\n\n", options.device.c_str(),
              options.dtype.c_str(), ceiling.bytes_per_second * 1e-9, ceiling.flops_per_second * 1e-12);
  nlohmann::ordered_json all = {{"device", options.device},
                                {"dtype", options.dtype},
                                {"copy_bytes_per_second", ceiling.bytes_per_second},
                                {"product_flops_per_second", ceiling.flops_per_second},
                                {"layers", nlohmann::ordered_json::array()}};
  // After each layer: a later one may not fit the GPU, or the time be over.
  const auto write = [&] {
    if (!options.json.empty()) {
      std::ofstream out(options.json, std::ios::trunc);
      out << all.dump(2) << '\n';
      require(static_cast<bool>(out.flush()), "cannot write {}", options.json);
    }
  };
  for (const LayerShape& shape : shapes) {
    for (const bool skewed : {false, true}) {
      if (skewed ? !options.uniform_only : !options.skewed_only) {
        all["layers"].push_back(measure(*device, *stream, shape, dtype, skewed, options, ceiling, time));
        write();
        std::printf("\n");
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace orthant::bench

int main(int argc, char** argv) {
  using namespace orthant::bench;
  Options options;
  bool list = false;
  CLI::App app("One routed layer at the shapes of published models: its steps, and forward and backward whole.");
  app.add_option("--device", options.device, "cpu, or cuda")->capture_default_str();
  app.add_option("--dtype", options.dtype, "bf16 or fp32")->capture_default_str();
  app.add_option("--shape", options.shapes, "only these shapes; may be repeated");
  app.add_option("--tokens", options.tokens, "another number of tokens than the shape's own")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "cpu: threads")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--samples", options.samples, "samples, of which the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seconds", options.sample_seconds, "at least so long a sample")->capture_default_str();
  app.add_option("--json", options.json, "write the figures to this file too");
  CLI::Option* const uniform = app.add_flag("--uniform", options.uniform_only, "only uniform routing");
  app.add_flag("--skewed", options.skewed_only, "only skewed routing")->excludes(uniform);
  app.add_flag("--whole", options.whole_only, "only the whole layer, not its steps");
  app.add_flag("--list", list, "the shapes, and nothing else");
  CLI11_PARSE(app, argc, argv);
  if (list) {
    for (const LayerShape& s : layer_shapes) {
      std::printf("%-18s T %6lld  d %5lld  n %5lld  E %4lld  K %3lld\n", std::string(s.name).c_str(),
                  static_cast<long long>(s.tokens), static_cast<long long>(s.d), static_cast<long long>(s.n),
                  static_cast<long long>(s.experts), static_cast<long long>(s.top_k));
    }
    return 0;
  }
  try {
    return run(options);
  } catch (const orthant::Error& problem) {
    std::cerr << "orthant-bench: " << problem.what() << '\n';
    return static_cast<int>(problem.code());
  } catch (const std::exception& problem) {
    std::cerr << "orthant-bench: " << problem.what() << '\n';
    return 1;
  }
}
