// AdamW on the CPU beside the machine's copy bandwidth, on tensors far beyond the cache.
//
//   optimizer_bench [--elements N] [--threads T] [--rounds R]     all variants in turns: a markdown table of medians
//   optimizer_bench --serve VARIANT [...]                         one variant, by the protocol of bench/peers/README.md
//
// Bytes are those that the definition moves: AdamW reads p, m, v and g and writes p, m and v, 28 an element, and 2 for
// the copy in bf16. A copy is 8: a plain store first reads the line that it overwrites, 4 more that are not counted; a
// non-temporal one does not. AdamW overwrites what it has read. Its ceiling is therefore the better of the two copies.
#include <orthant/device.h>
#include <orthant/ops.h>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#if defined(__SSE__)
#include <immintrin.h>
#endif

#include "core/device/cpu/parallel.h"

namespace orthant {
namespace {

struct Options {
  std::int64_t elements = std::int64_t{1} << 25;
  int threads = 1, rounds = 15;
  std::string serve;
};

struct Variant {
  std::string name;
  double bytes;  // of an element
  std::function<void()> run;
};

AdamW step_number(int step) {
  return {.lr = 1e-3f,
          .beta1 = 0.9f,
          .beta2 = 0.95f,
          .eps = 1e-8f,
          .weight_decay = 0.1f,
          .correction1 = static_cast<float>(1 - std::pow(0.9, step)),
          .correction2 = static_cast<float>(1 - std::pow(0.95, step))};
}

class Problem {
 public:
  explicit Problem(const Options& options)
      : threads_(options.threads),
        n_(options.elements),
        device_(make_device("cpu", options.threads)),
        stream_(device_->make_main_stream()) {
    for (Tensor* t : {&p_, &m_, &v_, &g_}) {
      *t = device_->empty(DType::f32, {n_});
    }
    weight_ = device_->empty(DType::bf16, {n_});
    factor_ = device_->empty(DType::f32, {1});
    stream_->fill(factor_, 1);
    stream_->fill(weight_, 0);
    restart();
  }

  // So that no second moment has decayed to denormal numbers.
  void restart() {
    std::uint32_t which = 0;
    for (const Tensor& t : {p_, m_, g_}) {
      stream_->init_normal(t.view({1, n_}), {1, Purpose::test, which++, 0}, 0.1f, {0, 0, n_});
    }
    stream_->fill(v_, 0.01);
  }

  std::vector<Variant> variants() {
    std::vector<Variant> all = {
      {"copy, plain stores", 8, [this] { copy<false>(); }},
#if defined(__SSE__)
      {"copy, non-temporal stores", 8, [this] { copy<true>(); }},
#endif
      {"adamw f32", 28, [this] { stream_->adamw(p_, p_, m_, v_, g_, factor_, step_number(10)); }},
      {"adamw bf16", 30, [this] { stream_->adamw(p_, weight_, m_, v_, g_, factor_, step_number(10)); }},
    };
    for (const int missed : {1, 4, 16, 64, 256}) {
      std::vector<AdamW> steps;
      for (int step = 0; step < missed; ++step) {
        steps.push_back(step_number(10 + step));
      }
      all.push_back({fmt::format("replay of {} bf16", missed), 26,
                     [this, steps] { stream_->adamw_replay(p_, weight_, m_, v_, steps); }});
    }
    return all;
  }

 private:
  // g into m.
  template <bool non_temporal>
  void copy() {
    const float* from = g_.as<float>();
    float* to = m_.as<float>();
    parallel_for(threads_, n_ / 16, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * 16; i < end * 16; i += 16) {
#if defined(__SSE__)
        for (int j = 0; j < 16; j += 4) {
          const __m128 x = _mm_load_ps(from + i + j);
          if constexpr (non_temporal) {
            _mm_stream_ps(to + i + j, x);
          } else {
            _mm_store_ps(to + i + j, x);
          }
        }
#else
        std::memcpy(to + i, from + i, 16 * sizeof(float));
#endif
        asm volatile("" ::: "memory");  // or it becomes a call of memcpy, which chooses its stores itself
      }
#if defined(__SSE__)
      _mm_sfence();
#endif
    });
  }

  int threads_;
  std::int64_t n_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Tensor p_, m_, v_, g_, weight_, factor_;
};

double seconds(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void table(const Options& options) {
  Problem problem(options);
  const std::vector<Variant> all = problem.variants();
  std::vector<std::vector<double>> taken(all.size());
  for (int round = 0; round <= options.rounds; ++round) {
    problem.restart();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double t = seconds(all[i].run);
      if (round > 0) {  // the first one warms up
        taken[i].push_back(t);
      }
    }
  }
  const auto n = static_cast<double>(options.elements);
  double ceiling = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ceiling = std::max(ceiling, all[i].bytes == 8 ? 8 * n / median(taken[i]) : 0);
  }
  fmt::print("{} elements, {} threads, median of {} rounds\n\n", options.elements, options.threads, options.rounds);
  fmt::print("| | ms | best ms | bytes an element | GB/s | share of the better copy |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- |\n");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double t = median(taken[i]), rate = all[i].bytes * n / t;
    fmt::print("| {} | {:.2f} | {:.2f} | {} | {:.1f} | {:.0f} % |\n", all[i].name, t * 1e3,
               *std::min_element(taken[i].begin(), taken[i].end()) * 1e3, all[i].bytes, rate * 1e-9,
               100 * rate / ceiling);
  }
}

int serve(const Options& options) {
  Problem problem(options);
  const std::vector<Variant> all = problem.variants();
  const auto variant = std::find_if(all.begin(), all.end(), [&](const Variant& v) { return v.name == options.serve; });
  if (variant == all.end()) {
    fmt::print(stderr, "optimizer_bench: no variant '{}'\n", options.serve);
    return 2;
  }
  std::string word;
  for (int count = 0; std::cin >> word && word == "step" && std::cin >> count;) {
    std::string times;
    for (int i = 0; i < count; ++i) {
      times += fmt::format("{}{:.6f}", i == 0 ? "" : ", ", seconds(variant->run));
    }
    fmt::print("{{\"name\": \"{}\", \"tokens\": {}, \"bytes\": {}, \"seconds\": [{}]}}\n", variant->name,
               options.elements, variant->bytes, times);
    std::fflush(stdout);
  }
  return 0;
}

int bench(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--elements") {
      options.elements = std::stoll(value);
    } else if (key == "--threads") {
      options.threads = std::stoi(value);
    } else if (key == "--rounds") {
      options.rounds = std::stoi(value);
    } else if (key == "--serve") {
      options.serve = value;
    } else {
      fmt::print(stderr, "optimizer_bench: unknown option {}\n", key);
      return 2;
    }
  }
  if (!options.serve.empty()) {
    return serve(options);
  }
  table(options);
  return 0;
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) {
  return orthant::bench(argc, argv);
}
