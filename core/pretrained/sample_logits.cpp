#include "core/pretrained/sample_logits.h"

#include <orthant/error.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>

#include "core/checkpoint/checkpoint.h"
#include "core/data/batch_builder.h"
#include "core/pretrained/merged_weights.h"
#include "core/pretrained/one_rank_model.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

// Whole documents, from position 0 on.
HostBatch batch_of(const std::vector<std::int32_t>& token, std::int64_t sequences) {
  const std::int64_t positions = static_cast<std::int64_t>(token.size()) / sequences;
  HostBatch batch = padding_batch(0, sequences, positions);
  for (std::int64_t row = 0; row < sequences; ++row) {
    const std::span<const std::int32_t> tokens(token.data() + row * positions, static_cast<std::size_t>(positions));
    put_document(batch, row, 0, tokens, positions);
  }
  return batch;
}

// logits of rows [T, d] (f32), by the final norm and the output matrix of the checkpoint.
std::vector<double> head(const std::vector<float>& rows, const CheckpointReader& reader, const Settings& settings) {
  const ModelSettings& model = settings.model;
  const std::int64_t d = model.d_model, words = model.vocab_size;
  std::vector<float> norm(static_cast<std::size_t>(d)), matrix(static_cast<std::size_t>(words * d));
  reader.read("model.norm.weight", {0}, {d}, norm.data());
  read_merged(reader, settings, model.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", {words, d},
              matrix.data());
  const std::int64_t tokens = static_cast<std::int64_t>(rows.size()) / d;
  std::vector<double> logits(static_cast<std::size_t>(tokens * words));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* x = rows.data() + t * d;
    double squares = 0;
    for (std::int64_t i = 0; i < d; ++i) {
      squares += static_cast<double>(x[i]) * x[i];
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(d) + model.norm_eps);
    for (std::int64_t w = 0; w < words; ++w) {
      double sum = 0;
      for (std::int64_t i = 0; i < d; ++i) {
        sum +=
            static_cast<double>(x[i]) * norm[static_cast<std::size_t>(i)] * matrix[static_cast<std::size_t>(w * d + i)];
      }
      logits[static_cast<std::size_t>(t * words + w)] = scale * sum;
    }
  }
  return logits;
}

}  // namespace

std::vector<std::int32_t> sample_tokens(std::int64_t count, std::int64_t vocab_size) {
  std::vector<std::int32_t> token;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
    const std::uint64_t bits = random_bits({1, Purpose::test, 0, 0}, i);
    token.push_back(static_cast<std::int32_t>(bits % static_cast<std::uint64_t>(vocab_size)));
  }
  return token;
}

std::vector<double> sample_logits(const Config& config, const std::filesystem::path& checkpoint,
                                  const std::vector<std::int32_t>& token, std::int64_t sequences) {
  if (config.settings.model.norm != NormKind::rmsnorm) {
    throw ConfigError("model.norm: logits are compared for \"rmsnorm\" alone");
  }
  const CheckpointReader reader(checkpoint);
  const std::int64_t positions = static_cast<std::int64_t>(token.size()) / sequences;
  std::vector<float> rows;
  run_threads(1, [&](Communicator& communicator) {
    OneRankModel model(config, reader, positions, 1, communicator);
    StepSums none;
    Tensor x = model.forward(batch_of(token, sequences), model.head(), none);  // all but the head
    if (x.dtype() != DType::f32) {
      const Tensor wide = model.device().empty(DType::f32, x.shape());
      model.stream().cast(wide, x);
      x = wide;
    }
    rows.resize(static_cast<std::size_t>(x.elements()));
    model.stream().download(rows.data(), x);
    model.stream().synchronize();
  });
  return head(rows, reader, config.settings);
}

LogitsDifference compare_logits(const Logits& found, const Logits& expected) {
  require(found.value.size() == expected.value.size(), "{} finds {} logits, {} finds {}", found.by, found.value.size(),
          expected.by, expected.value.size());
  LogitsDifference result;
  for (std::size_t i = 0; i < found.value.size(); ++i) {
    const double apart = std::abs(found.value[i] - expected.value[i]);
    require(std::isfinite(apart), "logit {} is {} by {} and {} by {}", i, found.value[i], found.by, expected.value[i],
            expected.by);
    result.largest = std::max(result.largest, std::abs(expected.value[i]));
    result.difference = std::max(result.difference, apart);
  }
  result.difference /= result.largest > 0 ? result.largest : 1;
  return result;
}

}  // namespace orthant
