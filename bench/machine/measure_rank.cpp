#include "bench/machine/measure_rank.h"

#include <orthant/ops.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

namespace orthant::machine {
namespace {

double seconds_of(Stream& stream, const std::function<void()>& work, int times) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) {
    work();
  }
  stream.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
}

class RankMeasurement {
 public:
  RankMeasurement(Communicator& communicator, Device& device, bool quick)
      : device_(device), quick_(quick), stream_(device.make_main_stream()) {
    std::vector<int> all(static_cast<std::size_t>(communicator.size()));
    std::iota(all.begin(), all.end(), 0);
    world_ = communicator.split("machine", all);
    found_.communicator = communicator.name();
    found_.device = device.name();
    found_.ranks = communicator.size();
  }

  Measured all() {
    world_->barrier(*stream_);
    if (world_->rank() == 0) {
      products();
      memory();
      attention();
      experts();
      launch();
    }
    world_->barrier(*stream_);
    together();
    if (world_->size() > 1) {
      links();
    }
    return std::move(found_);
  }

 private:
  // Long enough for the clock, and the best of a few: the others met something else on the machine.
  double timed(const std::function<void()>& work) const {
    const double enough = quick_ ? 4e-3 : 12e-3;
    seconds_of(*stream_, work, 1);  // kernels are made, pages are touched
    const double once = seconds_of(*stream_, work, 1);
    const int times = static_cast<int>(std::clamp(enough / std::max(once, 1e-9), 1.0, 1e5));
    double best = seconds_of(*stream_, work, times);
    for (int i = 1; i < (quick_ ? 3 : 7); ++i) {
      best = std::min(best, seconds_of(*stream_, work, times));
    }
    return best;
  }

  Tensor filled(DType dtype, Shape shape, double value = 0.5) {
    const Tensor tensor = device_.empty(dtype, shape);
    stream_->fill(tensor, value);
    return tensor;
  }

  void products() {
    const std::vector<std::int64_t> rows =
        quick_ ? std::vector<std::int64_t>{32, 512} : std::vector<std::int64_t>{8, 32, 128, 512, 2048};
    const std::vector<std::int64_t> sizes =
        quick_ ? std::vector<std::int64_t>{128, 512} : std::vector<std::int64_t>{64, 128, 256, 512, 1024};
    for (const bool half : {false, true}) {
      const DType dtype = half ? DType::bf16 : DType::f32;
      for (const std::int64_t m : rows) {
        for (const std::int64_t k : sizes) {
          const Tensor a = filled(dtype, {m, k}), b = filled(dtype, {k, k}), c = filled(dtype, {m, k});
          found_.products.push_back({half, m, k, k, timed([&] { stream_->gemm(c, a, b, {.transpose_b = true}); })});
        }
      }
    }
    // The largest product is the peak: of a size that fills any device.
    for (const bool half : {false, true}) {
      const std::int64_t n = device_.asynchronous() ? 8192 : 1536;
      const DType dtype = half ? DType::bf16 : DType::f32;
      const Tensor a = filled(dtype, {n, n}), b = filled(dtype, {n, n}), c = filled(dtype, {n, n});
      found_.products.push_back({half, n, n, n, timed([&] { stream_->gemm(c, a, b, {.transpose_b = true}); })});
    }
  }

  void add_memory(const std::string& name, double bytes, const std::function<void()>& work) {
    found_.memory.push_back({name, bytes, timed(work)});
  }

  void memory() {
    // From what a core's cache holds to what it does not.
    const int most = device_.asynchronous() ? 28 : 23, by = quick_ ? 5 : 2;
    for (int power = 13; power <= most; power += by) {
      const std::int64_t n = std::int64_t{1} << power;
      const Tensor from = filled(DType::f32, {n}), to = filled(DType::f32, {n});
      add_memory("copy", 8.0 * static_cast<double>(n), [&] { stream_->copy(to, from); });
    }
    const std::int64_t t = device_.asynchronous() ? 16384 : 1024, d = device_.asynchronous() ? 4096 : 256;
    const double row = 4.0 * static_cast<double>(t * d);
    const Tensor x = filled(DType::f32, {t, d}), y = filled(DType::f32, {t, d}), stats = filled(DType::f32, {t, 2}),
                 weight = filled(DType::f32, {d});
    add_memory("norm", 2 * row, [&] { stream_->norm(y, stats, x, weight, {}, NormKind::rmsnorm, 1e-5f); });
    add_memory("add", 3 * row, [&] { stream_->add(y, x); });
    const Tensor h = filled(DType::f32, {t, 4 * d}), a = filled(DType::f32, {t, 2 * d});
    add_memory("activation", 6 * row, [&] { stream_->activation(a, h, Activation::swiglu); });
    const std::int64_t n = device_.asynchronous() ? 1 << 26 : 1 << 20;
    const Tensor master = filled(DType::f32, {n}), m = filled(DType::f32, {n}), v = filled(DType::f32, {n}),
                 gradient = filled(DType::f32, {n}), factor = filled(DType::f32, {1});
    const AdamW how{1e-9f, 0.9f, 0.999f, 1e-8f, 0.0f, 0.5f, 0.5f};
    add_memory("adamw", 28.0 * static_cast<double>(n),
               [&] { stream_->adamw(master, master, m, v, gradient, factor, how); });
  }

  void attention() {
    const AttentionShape shape{.batch = device_.asynchronous() ? 8 : 2,
                               .positions = device_.asynchronous() ? 2048 : 256,
                               .heads = device_.asynchronous() ? 16 : 4,
                               .kv_heads = device_.asynchronous() ? 16 : 4,
                               .head_dim = 64};
    const std::int64_t t = shape.batch * shape.positions, width = shape.heads * shape.head_dim;
    const DType dtype = device_.asynchronous() ? DType::bf16 : DType::f32;
    const Tensor q = filled(dtype, {t, width}), k = filled(dtype, {t, width}), v = filled(dtype, {t, width}),
                 o = filled(dtype, {t, width}), lse = filled(DType::f32, {shape.batch, shape.heads, shape.positions});
    // Half of the scores: a token sees what lies before it.
    found_.attention_flops = 2.0 * static_cast<double>(t * shape.positions * width);
    found_.attention_seconds = timed([&] { stream_->attention(o, lse, q, k, v, {}, shape); });
  }

  // The same rows and products, once for several experts and once for one.
  void experts() {
    constexpr std::int64_t rows = 256, inner = 64, several = 16;
    const auto seconds = [&](std::int64_t count) {
      std::vector<std::int32_t> offsets;
      for (std::int64_t e = 0; e <= count; ++e) {
        offsets.push_back(static_cast<std::int32_t>(rows / count * e));
      }
      const Tensor a = filled(DType::f32, {rows, inner}), b = filled(DType::f32, {count, inner, inner}),
                   c = filled(DType::f32, {rows, inner}), offset = device_.empty(DType::i32, {count + 1});
      stream_->upload(offset, offsets.data());
      return timed([&] { stream_->grouped_gemm(c, a, b, offset, {.transpose_b = true}); });
    };
    constexpr double least = 1e-9;  // none that can be seen
    found_.expert_seconds = std::max(least, (seconds(several) - seconds(1)) / (several - 1));
  }

  void launch() {
    const Tensor x = filled(DType::f32, {16}), y = filled(DType::f32, {16});
    found_.launch_seconds = timed([&] { stream_->add(y, x); });
  }

  // Ranks 0 .. k - 1 compute for a while, the others wait in a barrier.
  void together() {
    const std::int64_t n = device_.asynchronous() ? 4096 : 256;
    const Tensor a = filled(DType::f32, {n, n}), b = filled(DType::f32, {n, n}), c = filled(DType::f32, {n, n});
    const Tensor done = device_.empty(DType::f64, {1});
    const double enough = quick_ ? 0.06 : 0.25;
    std::vector<double> rates;
    for (int k = 1; k <= world_->size(); ++k) {
      world_->barrier(*stream_);
      double rate = 0;
      if (world_->rank() < k) {
        const auto begin = std::chrono::steady_clock::now();
        double seconds = 0;
        int products = 0;
        do {
          stream_->gemm(c, a, b, {.transpose_b = true});
          stream_->synchronize();
          ++products;
          seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        } while (seconds < enough);
        rate = products / seconds;
      }
      stream_->upload(done, &rate);
      world_->all_reduce(done, ReduceOp::sum, *stream_);
      stream_->download(&rate, done);
      rates.push_back(rate);
    }
    for (const double rate : rates) {
      found_.together.push_back(rate / rates.front());
    }
  }

  // The slowest rank's, on all: they make equally many calls.
  double slowest(double seconds) {
    const Tensor one = device_.empty(DType::f64, {1});
    stream_->upload(one, &seconds);
    world_->all_reduce(one, ReduceOp::max, *stream_);
    stream_->download(&seconds, one);
    return seconds;
  }

  void add_link(const std::string& call, double bytes, const std::function<void()>& work) {
    const double enough = quick_ ? 4e-3 : 12e-3;
    seconds_of(*stream_, work, 1);
    const int times = static_cast<int>(std::clamp(enough / slowest(seconds_of(*stream_, work, 1)), 1.0, 200.0));
    double best = HUGE_VAL;
    for (int i = 0; i < (quick_ ? 3 : 7); ++i) {
      world_->barrier(*stream_);
      best = std::min(best, seconds_of(*stream_, work, times));
    }
    found_.links.push_back({call, bytes, best});
  }

  void links() {
    const std::vector<std::int64_t> sizes =
        quick_ ? std::vector<std::int64_t>{1 << 10, 1 << 18, 1 << 21}
               : std::vector<std::int64_t>{1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22};
    const std::int64_t ranks = world_->size();
    for (const std::int64_t bytes : sizes) {
      const std::int64_t part = bytes / 4 / ranks;  // elements
      const Tensor whole = filled(DType::f32, {part * ranks, 1}, 0), other = filled(DType::f32, {part * ranks, 1}),
                   own = filled(DType::f32, {part, 1}, 0);  // zeros: what is summed again and again stays finite
      const double held = 4.0 * static_cast<double>(part * ranks);
      add_link("all_reduce", held, [&] { world_->all_reduce(whole, ReduceOp::sum, *stream_); });
      add_link("all_gather", held, [&] { world_->all_gather(whole, own, *stream_); });
      add_link("reduce_scatter", held, [&] { world_->reduce_scatter(own, whole, ReduceOp::sum, *stream_); });
      const std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks), part);
      add_link("all_to_all", held, [&] { world_->all_to_all(other, rows, whole, rows, *stream_); });
      // There and back between neighbours; where ranks are odd in number, the last one looks on.
      const int me = world_->rank(), peer = me ^ 1;
      const auto ping = [&] {
        if (peer < world_->size()) {
          me % 2 == 0 ? world_->send(whole, peer, *stream_) : world_->recv(other, peer, *stream_);
          me % 2 == 0 ? world_->recv(other, peer, *stream_) : world_->send(whole, peer, *stream_);
        }
      };
      add_link("send", held, ping);
      found_.links.back().seconds /= 2;  // one way
    }
  }

  Device& device_;
  const bool quick_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Group> world_;
  Measured found_;
};

}  // namespace

Measured measure_rank(Communicator& communicator, Device& device, bool quick) {
  return RankMeasurement(communicator, device, quick).all();
}

}  // namespace orthant::machine
