#include "apps/pretrained/sample_logits.h"

#include <orthant/error.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "apps/pretrained/merged_weights.h"
#include "apps/pretrained/one_rank_model.h"
#include "core/arch/links.h"
#include "core/checkpoint/checkpoint.h"
#include "core/data/batch_builder.h"
#include "parallel/local/thread_world.h"

namespace orthant {
namespace {

// Row `row` of `sequences` that `all` has.
std::span<const std::int32_t> row_of(const std::vector<std::int32_t>& all, std::int64_t sequences, std::int64_t row) {
  const std::size_t count = all.size() / static_cast<std::size_t>(sequences);
  return std::span(all).subspan(static_cast<std::size_t>(row) * count, count);
}

// Whole documents, from position 0 on.
HostBatch batch_of(const std::vector<std::int32_t>& token, const std::vector<std::int32_t>& source,
                   std::int64_t sequences, const std::vector<Space>& spaces) {
  HostBatch batch = padding_batch(0, sequences, spaces);
  for (std::int64_t row = 0; row < sequences; ++row) {
    const auto put = [&](HostBatch& to, std::span<const std::int32_t> tokens) {
      const std::int64_t count = std::min(static_cast<std::int64_t>(tokens.size()), to.positions);
      put_document(to, row, 0, tokens.first(static_cast<std::size_t>(count)), count);
    };
    put(batch, row_of(token, sequences, row));
    for (HostBatch& further : batch.spaces) {
      put(further, row_of(source, sequences, row));
    }
  }
  return batch;
}

std::vector<float> read_vector(const CheckpointReader& reader, const std::string& name, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  reader.read(name, {0}, {n}, values.data());
  return values;
}

// logits of rows [T, d] (f32), by the final norm and the output matrix of the checkpoint.
std::vector<double> head(const std::vector<float>& rows, const CheckpointReader& reader, const Settings& settings) {
  const ModelSettings& model = settings.model;
  const std::int64_t d = model.d_model, words = model.vocab_size;
  const bool centred = model.norm == NormKind::layernorm;
  const std::vector<float> norm = read_vector(reader, "model.norm.weight", d);
  const std::vector<float> shift = centred ? read_vector(reader, "model.norm.bias", d) : std::vector<float>();
  const std::vector<float> bias = model.head_bias ? read_vector(reader, "lm_head.bias", words) : std::vector<float>();
  std::vector<float> matrix(static_cast<std::size_t>(words * d));
  read_merged(reader, settings, model.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", {words, d},
              matrix.data());
  const std::size_t width = static_cast<std::size_t>(d), tokens = rows.size() / width;
  std::vector<double> logits, normed(width);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::span<const float> x(rows.data() + t * width, width);
    const double mean = centred ? std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(d) : 0;
    double squares = 0;
    for (const float value : x) {
      squares += (value - mean) * (value - mean);
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(d) + model.norm_eps);
    for (std::size_t i = 0; i < width; ++i) {
      normed[i] = (x[i] - mean) * scale * (norm[i] + (model.norm_plus_one ? 1.0 : 0.0)) + (centred ? shift[i] : 0.0);
    }
    for (std::size_t w = 0; w < static_cast<std::size_t>(words); ++w) {
      double sum = bias.empty() ? 0 : bias[w];
      for (std::size_t i = 0; i < width; ++i) {
        sum += normed[i] * matrix[w * width + i];
      }
      sum /= model.logit_divisor;
      logits.push_back(model.logit_softcap > 0 ? model.logit_softcap * std::tanh(sum / model.logit_softcap) : sum);
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
                                  const std::vector<std::int32_t>& token, std::int64_t sequences,
                                  const std::vector<std::int32_t>& source) {
  return sample_logits(config, CheckpointReader(checkpoint), token, sequences, source);
}

std::vector<std::int32_t> sample_source(const std::vector<std::int32_t>& token, std::int64_t sequences) {
  std::vector<std::int32_t> source;
  for (std::int64_t row = 0; row < sequences; ++row) {
    const std::span<const std::int32_t> own = row_of(token, sequences, row);
    source.insert(source.end(), own.rbegin(), own.rend());
  }
  return source;
}

std::vector<double> sample_logits(const Config& config, const CheckpointReader& reader,
                                  const std::vector<std::int32_t>& token, std::int64_t sequences,
                                  const std::vector<std::int32_t>& source) {
  const std::int64_t positions = static_cast<std::int64_t>(token.size()) / sequences;
  std::vector<float> rows;
  run_threads(1, [&](Communicator& communicator) {
    OneRankModel model(config, reader, positions, 1, communicator);
    StepSums none;
    const HostBatch batch = batch_of(token, source.empty() ? sample_source(token, sequences) : source, sequences,
                                     spaces_of(model.settings()));
    Tensor x = model.forward(batch, model.head(), none);  // all but the head
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
