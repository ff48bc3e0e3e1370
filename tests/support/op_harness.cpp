#include "tests/support/op_harness.h"

#include <orthant/random.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <sstream>

namespace orthant::test {
namespace {

// bf16 by its definition, apart from the kernels' bit tricks: 8 significant bits, ties to even (nearbyint).
double round_to_bf16(double x) {
  if (x == 0 || !std::isfinite(x)) {
    return x;
  }
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  const double unit = std::ldexp(1.0, std::max(exponent - 8, -133));
  return std::nearbyint(x / unit) * unit;
}

std::uint16_t bf16_bits(double x) {
  const float f = static_cast<float>(x);  // exact: x is a bf16 value
  std::uint32_t bits = 0;
  std::memcpy(&bits, &f, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

double from_bf16_bits(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float f = 0;
  std::memcpy(&f, &wide, sizeof f);
  return f;
}

template <class T>
void encode(const Values& values, std::vector<std::byte>& bytes) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T x = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof(T));
  }
}

template <class T>
void decode(const std::vector<std::byte>& bytes, Values& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(x);
  }
}

// The 8-bit floats by their definition: (-1)^s 2^(e - bias) (1 + m / 2^bits), without the 1 where e is 0.
double from_f8_bits(DType dtype, int byte) {
  const int bits = dtype == DType::f8_e4m3 ? 3 : 2, bias = dtype == DType::f8_e4m3 ? 7 : 15;
  const int exponent = (byte & 0x7F) >> bits, mantissa = byte & ((1 << bits) - 1);
  const double sign = byte >= 128 ? -1 : 1;
  if (dtype == DType::f8_e4m3 ? (byte & 0x7F) == 0x7F : exponent == 31 && mantissa != 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (dtype == DType::f8_e5m2 && exponent == 31) {
    return sign * std::numeric_limits<double>::infinity();
  }
  const double fraction = static_cast<double>(mantissa) / (1 << bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

const std::array<double, 256>& f8_values(DType dtype) {
  static const auto all = [] {
    std::array<std::array<double, 256>, 2> values{};
    for (int byte = 0; byte < 256; ++byte) {
      values[0][byte] = from_f8_bits(DType::f8_e4m3, byte);
      values[1][byte] = from_f8_bits(DType::f8_e5m2, byte);
    }
    return values;
  }();
  return all[dtype == DType::f8_e4m3 ? 0 : 1];
}

// The finite number of the type nearest to x, of two equally near ones that with an even byte; NaN for NaN.
std::uint8_t f8_bits(DType dtype, double x) {
  if (std::isnan(x)) {
    return 0x7F;  // in both
  }
  const double size = std::min(std::abs(x), 1e6);  // infinity is as near to everything
  const std::array<double, 256>& values = f8_values(dtype);
  std::size_t nearest = 0;
  for (std::size_t byte = 1; byte < 128 && std::isfinite(values[byte]); ++byte) {
    const double now = std::abs(values[byte] - size), best = std::abs(values[nearest] - size);
    nearest = now < best || (now == best && byte % 2 == 0) ? byte : nearest;
  }
  return static_cast<std::uint8_t>(nearest + (std::signbit(x) ? 128 : 0));
}

bool is_integer(DType dtype) {
  return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8 || dtype == DType::i8;
}

std::vector<std::byte> bytes_of(Device& device, const Tensor& tensor) {
  const auto view = device.host_view(tensor, Access::read);
  return {view->data(), view->data() + view->bytes()};
}

}  // namespace

double rounded(DType dtype, double x) {
  switch (dtype) {
    case DType::bf16: return round_to_bf16(static_cast<float>(x));
    case DType::f32: return static_cast<double>(static_cast<float>(x));
    case DType::f8_e4m3:
    case DType::f8_e5m2: return f8_values(dtype)[f8_bits(dtype, x)];
    case DType::i8: return std::isnan(x) ? 0 : std::nearbyint(std::clamp(x, -128.0, 127.0));
    default: return x;
  }
}

OpContext::OpContext(Device& device) : device_(device), stream_(device.make_main_stream()) {}

Input OpContext::input(DType dtype, Shape shape, const Values& values) {
  require(static_cast<std::int64_t>(values.size()) == shape.elements(), "{} values for shape {}", values.size(),
          shape.to_string());
  Input in{device_.empty(dtype, shape), values};
  for (double& v : in.values) {
    v = rounded(dtype, v);
  }
  std::vector<std::byte> bytes(in.tensor.bytes());
  switch (dtype) {
    case DType::f32: encode<float>(in.values, bytes); break;
    case DType::f64: encode<double>(in.values, bytes); break;
    case DType::i32: encode<std::int32_t>(in.values, bytes); break;
    case DType::i64: encode<std::int64_t>(in.values, bytes); break;
    case DType::u8: encode<std::uint8_t>(in.values, bytes); break;
    case DType::i8: encode<std::int8_t>(in.values, bytes); break;
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      std::transform(in.values.begin(), in.values.end(), bytes.begin(),
                     [&](double x) { return static_cast<std::byte>(f8_bits(dtype, x)); });
      break;
    case DType::bf16:
      for (std::size_t i = 0; i < in.values.size(); ++i) {
        const std::uint16_t bits = bf16_bits(in.values[i]);
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
      break;
  }
  stream_->upload(in.tensor, bytes.data());
  return in;
}

Input OpContext::normal(DType dtype, Shape shape, double deviation, double mean) {
  const RandomKey key{1234, Purpose::test, static_cast<std::uint32_t>(++drawn_), 0};
  Values values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = mean + deviation * static_cast<double>(orthant::normal(key, i));
  }
  return input(dtype, shape, values);
}

Tensor OpContext::drawn(DType dtype, Shape shape, double deviation) {
  const std::int64_t columns = shape[shape.rank() - 1];
  const Tensor wide = device_.empty(DType::f32, shape),
               narrow = dtype == DType::f32 ? wide : device_.empty(dtype, shape);
  stream_->init_normal(wide.view({shape.elements() / columns, columns}),
                       {1234, Purpose::test, static_cast<std::uint32_t>(++drawn_), 0}, static_cast<float>(deviation),
                       {.global_columns = columns});
  if (dtype != DType::f32) {
    stream_->cast(narrow, wide);
  }
  return narrow;
}

Input OpContext::integers(DType dtype, Shape shape, std::int64_t low, std::int64_t high) {
  const RandomKey key{4321, Purpose::test, static_cast<std::uint32_t>(++drawn_), 0};
  Values values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<double>(low + static_cast<std::int64_t>(below(key, i, static_cast<std::uint64_t>(high - low))));
  }
  return input(dtype, shape, values);
}

Input OpContext::constant(DType dtype, Shape shape, double value) {
  return input(dtype, shape, Values(static_cast<std::size_t>(shape.elements()), value));
}

Tensor OpContext::poisoned(DType dtype, Shape shape) {
  const Tensor t = device_.empty(dtype, shape);
  std::vector<std::byte> bytes(t.bytes(), std::byte{0xFF});  // NaN in f32, bf16 and f64
  if (is_integer(dtype)) {
    std::fill(bytes.begin(), bytes.end(), std::byte{0x7B});
  }
  stream_->upload(t, bytes.data());
  return t;
}

Values OpContext::values_of(const Tensor& tensor) {
  stream_->synchronize();
  const std::vector<std::byte> bytes = bytes_of(device_, tensor);
  Values values(static_cast<std::size_t>(tensor.elements()));
  switch (tensor.dtype()) {
    case DType::f32: decode<float>(bytes, values); break;
    case DType::f64: decode<double>(bytes, values); break;
    case DType::i32: decode<std::int32_t>(bytes, values); break;
    case DType::i64: decode<std::int64_t>(bytes, values); break;
    case DType::u8: decode<std::uint8_t>(bytes, values); break;
    case DType::i8: decode<std::int8_t>(bytes, values); break;
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      std::transform(bytes.begin(), bytes.end(), values.begin(),
                     [&](std::byte x) { return f8_values(tensor.dtype())[static_cast<std::size_t>(x)]; });
      break;
    case DType::bf16:
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 2 * i, 2);
        values[i] = from_bf16_bits(bits);
      }
      break;
  }
  return values;
}

void OpContext::same_bits(const std::string& name, const Tensor& got) {
  stream_->synchronize();
  results_[name] = bytes_of(device_, got);
}

void OpContext::expect(const std::string& name, const Tensor& got, const Values& expected, double tolerance) {
  same_bits(name, got);
  const Values values = values_of(got);
  ASSERT_EQ(values.size(), expected.size()) << name;
  double squares = 0;
  std::size_t finite = 0;
  for (const double e : expected) {
    if (std::isfinite(e)) {
      squares += e * e;
      ++finite;
    }
  }
  const double typical = finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
  int shown = 0;
  for (std::size_t i = 0; i < values.size() && shown < 5; ++i) {
    const double v = values[i], e = expected[i];
    bool good = false;
    if (!std::isfinite(e)) {
      good = std::isnan(e) ? std::isnan(v) : v == e;
    } else if (is_integer(got.dtype())) {
      good = v == e;
    } else {
      good = std::abs(v - e) <= tolerance * std::max(std::abs(e), typical);
    }
    if (!good) {
      ++shown;
      ADD_FAILURE() << name << " " << got.shape().to_string() << " " << name_of(got.dtype()) << " element " << i
                    << ": got " << v << ", expected " << e << ", tolerance " << tolerance << " of "
                    << std::max(std::abs(e), typical);
    }
  }
}

namespace {

struct Kind {
  std::string name;
  std::vector<int> threads;
  bool required;
};

// All devices, of which a GPU may be absent; or those of ORTHANT_TEST_DEVICES, which may not.
std::vector<Kind> chosen_devices() {
  // Each of the two runs on "simt" has other orders of CUDA threads (tests/simt).
  const std::vector<Kind> all = {{"cpu", {1, 2}, true},   {"guarded", {1}, true}, {"bare", {1}, true},
                                 {"composed", {1}, true}, {"simt", {1}, true},    {"cuda", {1}, false}};
  const char* const chosen = std::getenv("ORTHANT_TEST_DEVICES");
  if (chosen == nullptr) {
    return all;
  }
  std::vector<Kind> kinds;
  std::istringstream names(chosen);
  for (std::string name; std::getline(names, name, ',');) {
    const auto known = std::find_if(all.begin(), all.end(), [&](const Kind& kind) { return kind.name == name; });
    require(known != all.end(), "ORTHANT_TEST_DEVICES: there is no device \"{}\" in the list of operations", name);
    kinds.push_back({name, known->threads, true});
  }
  return kinds;
}

// The device, or null where one that is not required is not here; the first time, the reason is printed. It is not
// looked for again: to open its library is to read all of it.
std::unique_ptr<Device> device_of(const Kind& kind, int threads) {
  static std::set<std::string> absent_kinds;
  if (absent_kinds.contains(kind.name)) {
    return nullptr;
  }
  try {
    return make_device(kind.name, threads);
  } catch (const Error& absent) {
    if (kind.required) {
      throw;
    }
    absent_kinds.insert(kind.name);
    fmt::print("[ SKIPPED  ] the share of device \"{}\": {}\n", kind.name,
               std::string_view(absent.what()).substr(0, 300));
    return nullptr;
  }
}

}  // namespace

void on_every_device(const std::function<void(OpContext&)>& body, SameBits same) {
  for (const Kind& kind : chosen_devices()) {
    std::map<std::string, std::vector<std::byte>> reference;
    bool first = true;
    for (const int threads : kind.threads) {
      SCOPED_TRACE("device " + kind.name + ", threads " + std::to_string(threads));
      const std::unique_ptr<Device> device = device_of(kind, threads);
      if (device == nullptr) {
        break;
      }
      first = first || same == SameBits::per_thread_count;
      for (int run = 0; run < 2; ++run) {
        OpContext context(*device);
        body(context);
        if (testing::Test::HasFatalFailure()) {
          return;
        }
        if (first) {
          reference = context.results();
          first = false;
          continue;
        }
        ASSERT_EQ(context.results().size(), reference.size());
        for (const auto& [name, bytes] : context.results()) {
          EXPECT_TRUE(bytes == reference[name]) << name << " has other bits in run " << run << " than in the first";
        }
      }
    }
  }
}

Values numeric_gradient(const std::function<double(const Values&)>& f, Values x, double step) {
  Values gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double above = f(x);
    x[i] = at - step;
    const double under = f(x);
    x[i] = at;
    gradient[i] = (above - under) / (2 * step);
  }
  return gradient;
}

double inner(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

}  // namespace orthant::test
