// The head with pairs of answers: loss, sums and gradients against the definition in fp64 and finite differences of it,
// in one chunk of logits and in several, on one rank and where ranks divide the vocabulary or the positions.
#include <gtest/gtest.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "core/layers/head.h"
#include "core/modules/make_device.h"
#include "core/objectives/pairs.h"
#include "core/train/micro_batches.h"
#include "core/train/objectives.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::head_test {
namespace {

using test::experiment;
using Values = std::vector<double>;

constexpr std::int64_t width = 16;                    // of test::experiment
constexpr std::int64_t pairs = 2, chosen_tokens = 8;  // of the global batch
constexpr double scale = 1.0 / pairs, nll_scale = 1.0 / chosen_tokens;

// Two pairs and a sequence of padding. The answers are of other lengths, and stand behind prompts.
struct Case {
  std::int64_t vocabulary, positions;
  std::string loss;
  double nll_weight = 0;
};

HostBatch batch_of(const Case& c) {
  HostBatch batch;
  batch.sequences = 3;
  batch.positions = c.positions;
  pad_to(batch, 3, {{.name = "tokens", .positions = batch.positions}});
  for (std::int64_t s = 0; s < 2; ++s) {
    const std::int64_t cut = c.positions / 2 - s;  // where the rejected one begins
    for (std::int64_t p = 0; p < c.positions - s; ++p) {
      const std::size_t t = static_cast<std::size_t>(s * c.positions + p);
      const bool chosen = p < cut;
      const std::int64_t place = chosen ? p : p - cut;
      batch.token[t] = 1;
      batch.first[t] = static_cast<std::int32_t>(chosen ? 0 : cut);
      batch.position[t] = static_cast<std::int32_t>(place);
      batch.valid[t] = 1;
      batch.label[t] = place >= 2 ? static_cast<std::int32_t>((p * 7 + s * 3) % c.vocabulary) : -1;
    }
  }
  return batch;
}

Values numbers(std::uint32_t site, std::int64_t count, double size) {
  Values values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(size * static_cast<double>(normal({3, Purpose::test, site, 0}, static_cast<std::uint64_t>(i))));
  }
  return values;
}

// log p(label) of a token, of its input to the head's matrix.
double log_p(const double* x, const Values& matrix, std::int64_t vocabulary, std::int32_t label) {
  Values logits(static_cast<std::size_t>(vocabulary));
  for (std::size_t v = 0; v < logits.size(); ++v) {
    logits[v] = std::inner_product(x, x + width, matrix.begin() + static_cast<std::ptrdiff_t>(v * width), 0.0);
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) {
    sum += std::exp(logit - largest);
  }
  return logits[static_cast<std::size_t>(label)] - largest - std::log(sum);
}

struct Told {
  double loss = 0, nll = 0, right = 0, rewards = 0;
};

// The paper's loss of the whole batch. x: of the tokens, behind the norm; seen: the same for the reference, which no
// gradient reaches.
Told naive(const Case& c, const Values& x, const Values& matrix, const Values& reference, const Values& seen) {
  const HostBatch batch = batch_of(c);
  Told told;
  for (std::int64_t s = 0; s < 2; ++s) {
    double ours[2] = {}, theirs[2] = {}, tokens[2] = {};
    for (std::int64_t p = 0; p < c.positions; ++p) {
      const std::size_t t = static_cast<std::size_t>(s * c.positions + p);
      if (batch.label[t] >= 0) {
        const int answer = batch.first[t] == 0 ? 0 : 1;
        ours[answer] += log_p(x.data() + t * width, matrix, c.vocabulary, batch.label[t]);
        theirs[answer] += log_p(seen.data() + t * width, reference, c.vocabulary, batch.label[t]);
        tokens[answer] += 1;
      }
    }
    told.nll -= ours[0];
    if (c.loss == "ipo") {
      const double h = (ours[0] - theirs[0]) / tokens[0] - (ours[1] - theirs[1]) / tokens[1];
      told.loss += std::pow(h - 1 / (2 * 0.3), 2);
      told.rewards += 0.3 * h;
      told.right += h > 0 ? 1 : 0;
    } else {
      const double h = 0.3 * ((ours[0] - theirs[0]) - (ours[1] - theirs[1]));
      told.loss += std::log1p(std::exp(-h));
      told.rewards += h;
      told.right += h > 0 ? 1 : 0;
    }
  }
  return told;
}

double total(const Case& c, const Told& told) {
  return scale * told.loss + nll_scale * c.nll_weight * told.nll;
}

// Logits of the reference: those of another matrix on the same inputs.
class Fixed final : public TeacherLogits {
 public:
  Fixed(const Tensor& n, const Tensor& matrix, Stream& stream) : n_(n), matrix_(matrix), stream_(stream) {}
  void begin(int) override { ++begun; }
  Tensor logits(std::int64_t begin, std::int64_t rows) override {
    Tensor logits = stream_.device().empty(DType::f32, {rows, matrix_.dim(0)});
    stream_.gemm(logits, n_.rows(begin, rows), matrix_, {.transpose_b = true});
    return logits;
  }
  void end() override { --begun; }
  int begun = 0;

 private:
  Tensor n_, matrix_;
  Stream& stream_;
};

struct Found {
  Values sums = Values(pair_sums);
  std::map<std::int64_t, double> matrix;  // by element of the whole
  std::map<std::int64_t, double> input;
};

Found computed(const Case& c, const std::string& plugins, int ranks, bool training = true,
               const std::string& on = "cpu") {
  const Config config =
      experiment({"data.source=\"pairs\"", fmt::format("data.path=[\"{}\"]", paths::source("README.md")),
                  "train.from=\"/nowhere\"", "data.tokenizer=\"bytes\"",
                  fmt::format("model.vocab_size={}", c.vocabulary), fmt::format("data.sequence_length={}", c.positions),
                  "batch.sequences=3", fmt::format("preference.loss=\"{}\"", c.loss), "preference.beta=0.3",
                  "model.norm=\"rmsnorm\"", fmt::format("preference.nll_weight={}", c.nll_weight)},
                 plugins);
  const std::int64_t tokens = 3 * c.positions;
  const Values input = numbers(1, tokens * width, 1), matrix = numbers(2, c.vocabulary * width, 0.5),
               reference = numbers(4, c.vocabulary * width, 0.5);
  Found found;
  std::mutex mutex;
  run_threads(ranks, [&](Communicator& communicator) {
    const std::unique_ptr<Device> device = make_device(on, 1, true);
    const std::unique_ptr<Stream> stream = device->make_main_stream();
    Stream& s = *stream;
    Session session(config);
    session.plan(communicator.rank(), &communicator, device.get());
    Plan& plan = session.plan();
    Model model(plan, s);
    const DeviceBatch batch = upload(batch_of(c), plan, s);
    const Range columns = plan.part(Dim::vocab, c.vocabulary, Region::head);
    const auto put = [&](const Values& values, std::int64_t rows, const std::vector<std::int64_t>& from) {
      std::vector<float> own;
      for (const std::int64_t row : from) {
        own.insert(own.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
      }
      Tensor t = device->empty(DType::f32, {rows, width});
      s.upload(t, own.data());
      return t;
    };
    std::vector<std::int64_t> rows_of_matrix(static_cast<std::size_t>(columns.count)), held;
    std::iota(rows_of_matrix.begin(), rows_of_matrix.end(), columns.begin);
    for (std::int64_t sequence = 0; sequence < 3; ++sequence) {
      for (const Range& run : plan.positions(Region::head, plan.mesh().rank())) {
        for (std::int64_t p = run.begin; p < run.begin + run.count; ++p) {
          held.push_back(sequence * c.positions + p);
        }
      }
    }
    ParamStore& store = model.parameters();
    const ParamRef head = store.ref("lm_head.weight");
    s.copy(head.weight(), put(matrix, columns.count, rows_of_matrix));
    for (const auto& group : store.groups()) {
      if (group->grad.defined()) {
        s.fill(group->grad, 0);
      }
      group->grad_empty = true;
    }
    StepSums sums;
    const Tensor all = device->empty(DType::f64, {pair_sums});
    s.fill(all, 0);
    const Objectives objectives(config.settings);
    sums.objectives = objectives.in(all);
    objectives.set_counts(sums.objectives, std::vector<std::int64_t>{pairs, chosen_tokens});
    StepContext ctx{.plan = plan, .stream = s, .batch = batch, .sums = sums};
    ctx.training = training;
    ctx.loss_scale = static_cast<float>(scale);
    HeadLayer layer(store, plan, head_of(plan.links()));
    const Tensor x = put(input, static_cast<std::int64_t>(held.size()), held);
    Saved saved;
    const Tensor n = layer.normed(ctx, x, saved);
    Fixed fixed(n, put(reference, columns.count, rows_of_matrix), s);
    sums.teacher = &fixed;
    saved = {};
    layer.forward(ctx, {x}, saved);
    EXPECT_EQ(fixed.begun, 0);
    std::vector<double> own(pair_sums);
    s.download(own.data(), all);
    std::vector<float> gradient(static_cast<std::size_t>(columns.count * width)), dn(held.size() * width);
    if (training) {
      s.download(gradient.data(), head.grad());
      s.download(dn.data(), saved.pop());
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < own.size(); ++i) {
      found.sums[i] += plan.counts_tokens(Region::head, false) ? own[i] : 0;
    }
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      found.matrix[columns.begin * width + static_cast<std::int64_t>(i)] += static_cast<double>(gradient[i]);
    }
    for (std::size_t i = 0; i < dn.size(); ++i) {
      const std::int64_t of_all = held[i / width] * width + static_cast<std::int64_t>(i % width);
      found.input[of_all] = static_cast<double>(dn[i]);
    }
  });
  return found;
}

// x behind the norm, whose weights are one.
Values normed(const Values& x) {
  Values n = x;
  for (std::size_t row = 0; row < x.size(); row += width) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) {
      squares += x[row + i] * x[row + i];
    }
    for (std::size_t i = 0; i < width; ++i) {
      n[row + i] = x[row + i] / std::sqrt(squares / width + 1e-5);
    }
  }
  return n;
}

void expect_right(const Case& c, const std::string& plugins, int ranks, const std::string& on = "cpu") {
  SCOPED_TRACE(fmt::format("{} of {} ids, {} positions, {}", c.loss, c.vocabulary, c.positions, plugins));
  const std::int64_t tokens = 3 * c.positions;
  Values n = normed(numbers(1, tokens * width, 1)), matrix = numbers(2, c.vocabulary * width, 0.5);
  const Values reference = numbers(4, c.vocabulary * width, 0.5), seen = n;
  const Found found = computed(c, plugins, ranks, true, on);
  const Told told = naive(c, n, matrix, reference, seen);
  const auto sum = [&](PairSum which) { return found.sums[static_cast<std::size_t>(which)]; };
  const double near = 1e-5 * std::max(1.0, std::abs(told.nll));
  EXPECT_NEAR(sum(PairSum::loss), told.loss, near);
  EXPECT_NEAR(sum(PairSum::nll), told.nll, near);
  EXPECT_NEAR(sum(PairSum::reward_chosen) - sum(PairSum::reward_rejected), told.rewards, near);
  EXPECT_EQ(sum(PairSum::right), told.right);
  const auto slope = [&](Values& of, std::int64_t i) {
    const double h = 1e-4, before = of[static_cast<std::size_t>(i)];
    of[static_cast<std::size_t>(i)] = before + h;
    const double above = total(c, naive(c, n, matrix, reference, seen));
    of[static_cast<std::size_t>(i)] = before - h;
    const double below = total(c, naive(c, n, matrix, reference, seen));
    of[static_cast<std::size_t>(i)] = before;
    return (above - below) / (2 * h);
  };
  const std::int64_t some = c.vocabulary > 1000 ? 2 : 24;
  for (std::int64_t i = 0; i < some; ++i) {
    const std::int64_t of_matrix = i * 7919 % (c.vocabulary * width), of_input = i * 101 % (tokens * width);
    EXPECT_NEAR(found.matrix.at(of_matrix), slope(matrix, of_matrix), 2e-5) << "matrix " << of_matrix;
    EXPECT_NEAR(found.input.at(of_input), slope(n, of_input), 2e-5) << "input " << of_input;
  }
  double largest = 0;
  for (const auto& [i, gradient] : found.matrix) {
    largest = std::max(largest, std::abs(gradient));
  }
  EXPECT_GT(largest, 1e-2);
}

const std::vector<Case> cases = {{24, 16, "sigmoid"}, {24, 16, "ipo"}, {24, 16, "sigmoid", 1.5}};

TEST(PreferenceHead, IsTheDefinition) {
  for (const Case& c : cases) {
    expect_right(c, "", 1);
  }
}

// More tokens than a chunk of logits has: they are made twice.
TEST(PreferenceHead, OfSeveralChunksIsTheDefinition) {
  expect_right({4200, 90, "sigmoid", 0.5}, "", 1);
}

TEST(PreferenceHead, OfDividedVocabulariesAndPositionsIsTheDefinition) {
  for (const Case& c : cases) {
    expect_right(c, "[plugins.tensor]\nsize = 2\n", 2);
    expect_right(c, "[plugins.sequence]\nsize = 2\n", 2);
    expect_right(c, "[plugins.sequence]\nsize = 4\nmethod = \"ring\"\n", 4);
    expect_right(c, "[plugins.sequence]\nsize = 2\n[plugins.tensor]\nsize = 2\n", 4);
  }
}

// The kernels of CUDA, which run on the CPU here.
TEST(PreferenceHead, OnTheDeviceSimt) {
  for (const Case& c : cases) {
    expect_right(c, "", 1, "simt");
  }
}

TEST(PreferenceHead, MeasuresWithoutGradients) {
  const Found training = computed(cases[0], "", 1), measured = computed(cases[0], "", 1, false);
  EXPECT_EQ(training.sums, measured.sums);
}

}  // namespace
}  // namespace orthant::head_test
