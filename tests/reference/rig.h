// One rank of a small experiment without a launcher, and the reference files, for the tests in this folder.
#pragma once

#include <gtest/gtest.h>
#include <orthant/device.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/data/batch.h"
#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"
#include "core/session/session.h"
#include "parallel/local/local_communicator.h"
#include "parallel/local/segment.h"
#include "tests/support/paths.h"

namespace orthant::test {

// What the references are compared to: the norm of the difference over the norm (README.md).
inline constexpr double tolerance = 1e-5;

// A committed file of reference tensors.
class Reference {
 public:
  explicit Reference(const std::string& name) : file_(paths::source("tests/reference/" + name + ".safetensors")) {}

  const SafetensorsReader& file() const { return file_; }
  std::vector<float> floats(const std::string& name) const { return values<float>(name, DType::f32); }
  std::vector<std::int32_t> integers(const std::string& name) const { return values<std::int32_t>(name, DType::i32); }
  double number(const std::string& name) const { return static_cast<double>(floats(name).at(0)); }
  std::int64_t integer(const std::string& name) const { return integers(name).at(0); }
  // The names below a prefix ("grad/"), without it.
  std::vector<std::string> below(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const FileTensor& t : file_.tensors()) {
      if (t.name.starts_with(prefix)) {
        names.push_back(t.name.substr(prefix.size()));
      }
    }
    return names;
  }

 private:
  template <class T>
  std::vector<T> values(const std::string& name, DType dtype) const {
    const FileTensor& t = file_.at(name);
    require(t.dtype == dtype, "{} is {}, asked for as {}", name, t.dtype.name(), name_of(dtype));
    const auto bytes = file_.bytes(t);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  SafetensorsReader file_;
};

// ||got - expected|| / ||expected||; where all is expected to be zero, ||got||. NaN and other sizes: infinity.
inline double difference(const std::vector<float>& got, const std::vector<float>& expected) {
  double apart = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size() && i < got.size(); ++i) {
    const double e = static_cast<double>(expected[i]), d = static_cast<double>(got[i]) - e;
    apart += d * d;
    norm += e * e;
  }
  const double result = std::sqrt(apart) / (norm > 0 ? std::sqrt(norm) : 1);
  return got.size() == expected.size() && std::isfinite(result) ? result : INFINITY;
}

inline void expect_equal(const std::string& what, const std::vector<float>& got, const std::vector<float>& expected) {
  EXPECT_LE(difference(got, expected), tolerance) << what;
}
inline void expect_equal(const std::string& what, double got, double expected) {
  EXPECT_NEAR(got, expected, tolerance * std::abs(expected)) << what;
}

// A rank of its own, with the plan of `settings`.
class Rank {
 public:
  explicit Rank(const Settings& settings)
      : config_{.file = {},
                .settings = settings,
                .tables = {},
                .plugins = {},
                .sources = std::make_shared<Sources>(),
                .element_origins = {}},
        device_(make_device("cpu", 1)),
        stream_(device_->make_main_stream()),
        communicator_(make_local_communicator(LocalSegment::create(1), 0, 10)),
        session_(config_) {
    session_.plan(0, communicator_.get(), device_.get());
  }

  Plan& plan() { return session_.plan(); }
  Stream& stream() { return *stream_; }
  Device& device() { return *device_; }

  template <class T>
  Tensor upload(DType dtype, Shape shape, const std::vector<T>& values) {
    require(static_cast<std::size_t>(shape.elements()) == values.size() && size_of(dtype) == sizeof(T),
            "{} values for {}", values.size(), shape.to_string());
    Tensor t = device_->empty(dtype, shape);
    stream_->upload(t, values.data());
    return t;
  }
  std::vector<float> floats(const Tensor& t) { return download<float>(t); }
  std::vector<std::int32_t> integers(const Tensor& t) { return download<std::int32_t>(t); }
  std::vector<std::int64_t> whole_numbers(const Tensor& t) {
    if (t.dtype() == DType::i32) {
      const std::vector<std::int32_t> narrow = download<std::int32_t>(t);
      return {narrow.begin(), narrow.end()};
    }
    return download<std::int64_t>(t);
  }
  double number(const Tensor& t) { return download<double>(t).at(0); }

  // Parameters by name, in a store made from this rank's plan.
  void set(ParamStore& store, const std::string& name, const std::vector<float>& values) {
    const auto [group, param] = store.find(name);
    require(group != nullptr && static_cast<std::size_t>(param->elements()) == values.size(), "no parameter {} of {}",
            name, values.size());
    stream_->upload(group->master.slice(param->begin, {param->elements()}), values.data());
  }
  std::vector<float> weight(const ParamStore& store, const std::string& name) {
    const auto [group, param] = store.find(name);
    require(group != nullptr, "no parameter {}", name);
    return floats(group->master.slice(param->begin, {param->elements()}));
  }
  std::vector<float> gradient(const ParamStore& store, const std::string& name) {
    const auto [group, param] = store.find(name);
    require(group != nullptr, "no parameter {}", name);
    return floats(group->grad_of(*param));
  }

  // Whole sequences without padding.
  DeviceBatch batch(std::int64_t sequences, std::int64_t positions, const std::vector<std::int32_t>& token,
                    const std::vector<std::int32_t>& label) {
    const Shape shape{sequences * positions};
    std::vector<std::int32_t> position;
    std::vector<std::int64_t> index;
    for (std::int64_t t = 0; t < sequences * positions; ++t) {
      position.push_back(static_cast<std::int32_t>(t % positions));
      index.push_back(t);
    }
    DeviceBatch made;
    made.sequences = sequences;
    made.positions = positions;
    made.token = upload(DType::i32, shape, token);
    made.label = upload(DType::i32, shape, label);
    made.position = upload(DType::i32, shape, position);
    made.valid = upload(DType::u8, shape, std::vector<std::uint8_t>(index.size(), 1));
    made.index = upload(DType::i64, shape, index);
    made.valid_count = shape.elements();
    made.core_positions = positions;
    made.whole_valid = made.valid;
    made.whole_index = made.index;
    return made;
  }
  StepSums sums() {
    auto zero = [&] { return upload(DType::f64, {1}, std::vector<double>{0}); };
    const std::int64_t experts = config_.settings.moe.experts;
    const Shape shape{config_.settings.model.layers, 2, experts};
    const std::vector<std::int64_t> none(shape.elements(), 0);
    StepSums sums;
    sums.loss = zero();
    sums.balance = zero();
    sums.z = zero();
    sums.choices = upload(DType::i64, shape, none);
    sums.counts = upload(DType::i32, shape, std::vector<std::int32_t>(shape.elements(), 0));
    return sums;
  }

 private:
  template <class T>
  std::vector<T> download(const Tensor& t) {
    require(size_of(t.dtype()) == sizeof(T), "download of {}", name_of(t.dtype()));
    std::vector<T> out(t.elements());
    stream_->download(out.data(), t);
    return out;
  }

  Config config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> communicator_;
  Session session_;
};

}  // namespace orthant::test
