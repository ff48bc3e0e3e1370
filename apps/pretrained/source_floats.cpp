#include "apps/pretrained/source_floats.h"

#include <orthant/error.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "core/base/storage_types.h"
#include "core/device/cpu/bf16.h"

namespace orthant {
namespace {

using Theirs = ConfigLink::Theirs;

constexpr FileType f8 = DType::f8_e4m3;

std::int64_t blocks_in(std::int64_t size, std::int64_t block) {
  return (size + block - 1) / block;
}

// IEEE 754 binary16: a sign, 5 bits of exponent (bias 15), 10 of mantissa.
float half_value(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31, exponent = bits >> 10 & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 0) {  // a multiple of 2^-24
    return float_of_bits(sign | bits_of_float(std::ldexp(static_cast<float>(mantissa), -24)));
  }
  return float_of_bits(sign | (exponent == 0x1F ? 0x7F800000u : (exponent + 112) << 23) | mantissa << 13);
}

// The file need not align its elements.
template <class T>
T element(const std::byte* from, std::size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof value, sizeof value);
  return value;
}

// REQUIRES: F32, BF16 or F16.
void widen(FileType type, const std::byte* from, std::span<float> out) {
  if (type == DType::f32) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  const bool half = type == FileType::f16();
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = half ? half_value(element<std::uint16_t>(from, i)) : to_float(element<BFloat16>(from, i));
  }
}

constexpr std::string_view blocks_suffix = "_blocks";

// Blocks of 4-bit elements.
bool is_blocks(const FileTensor& tensor) {
  return tensor.dtype == DType::u8 && tensor.name.ends_with(blocks_suffix);
}

constexpr std::int64_t of_block = 32;  // elements with one scale

// A sign, two bits of exponent (bias 1), one of mantissa.
constexpr float quarters[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(exponent - 127). A product with it is exact, or infinite: 2^-128 and its multiples are f32's too.
float power_of_two(unsigned exponent) {
  return float_of_bits(exponent == 255 ? 0x7FC00000u : exponent == 0 ? 0x00400000u : exponent << 23);  // 255: no number
}

// Experts in one tensor, gate above up in each.
bool is_gate_and_up(const FileTensor& tensor) {
  return tensor.sizes.size() == 3 && tensor.name.ends_with("gate_up_proj");
}

bool is_float(FileType type) {
  return type == DType::f32 || type == DType::bf16 || type == FileType::f16();
}

}  // namespace

std::optional<ScaleBlocks> scale_blocks_in(const Theirs& config, const std::string& where) {
  const auto found = config.find("quantization_config");
  if (found == config.end()) {
    return {};
  }
  const Theirs& how = *found;
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(fmt::format(
        "{}: quantization_config {}. Of quantised models those are read that say quant_method \"fp8\" and fmt "
        "\"e4m3\", with scales of blocks (weight_block_size, DeepSeek-V3's form) or of whole matrices "
        "(weight_block_size null), and gpt-oss's with \"mxfp4\". Save any other "
        "as bfloat16 first: "
        "dequantize=True in transformers' quantization config, then save_pretrained",
        where, what));
  };
  if (!how.is_object()) {
    refuse("is no object");
  }
  // Activations are rounded when such a model is served in 8 bits: as they come (dynamic), or by what is stored for it
  // (static), which is no part of the weights.
  const std::vector<std::pair<const char*, std::vector<Theirs>>> wanted = {{"quant_method", {"fp8"}},
                                                                           {"fmt", {"e4m3", "float8_e4m3fn"}},
                                                                           {"activation_scheme", {"dynamic", "static"}},
                                                                           {"expert_dtype", {"fp8"}}};
  for (const auto& [key, values] : wanted) {
    const Theirs is = how.value(key, key == std::string("quant_method") ? Theirs() : values.front());
    if (std::find(values.begin(), values.end(), is) == values.end()) {
      refuse(fmt::format("has {} = {}", key, is.dump()));
    }
  }
  // What these leave as it was, tensors show by their types. scale_fmt: how scales were chosen.
  const std::set<std::string> known = {"quant_method",       "fmt",
                                       "activation_scheme",  "weight_block_size",
                                       "scale_fmt",          "modules_to_not_convert",
                                       "modules_to_convert", "ignored_layers",
                                       "dequantize",         "expert_dtype"};
  for (const auto& [key, value] : how.items()) {
    if (!known.contains(key)) {
      refuse(fmt::format("has {}, which is not known", key));
    }
  }
  const auto said = how.find("weight_block_size");
  if (said != how.end() && said->is_null()) {
    return ScaleBlocks{};
  }
  const Theirs size = said != how.end() ? *said : Theirs();
  const auto is_size = [](const Theirs& n) { return n.is_number_unsigned() && n > 0 && n < 1 << 20; };
  if (!size.is_array() || size.size() != 2 || !is_size(size[0]) || !is_size(size[1])) {
    refuse(said == how.end()
               ? "has no weight_block_size, where two sizes or null were expected"
               : fmt::format("has weight_block_size = {}, where two sizes or null were expected", size.dump()));
  }
  return ScaleBlocks{size[0], size[1]};
}

bool says_mxfp4(const Theirs& config, const std::string& where) {
  const Theirs how = config.value("quantization_config", Theirs());
  if (!how.is_object() || how.value("quant_method", Theirs()) != "mxfp4") {
    return false;
  }
  for (const auto& [key, value] : how.items()) {
    if (key != "quant_method" && key != "modules_to_not_convert") {
      throw ConfigError(
          fmt::format("{}: quantization_config has {}, which is not known of quant_method \"mxfp4\": it might change "
                      "what the weights are",
                      where, key));
    }
  }
  return true;
}

std::string SourceFloats::scales_of(const FileTensor& tensor) const {
  if (is_blocks(tensor)) {
    return tensor.name.substr(0, tensor.name.size() - blocks_suffix.size()) + "_scales";
  }
  return tensor.dtype == f8 ? tensor.name + "_scale_inv" : "";
}

std::string SourceFloats::activation_scale_of(const FileTensor& tensor) const {
  constexpr std::string_view weight = ".weight";
  if (tensor.dtype != f8) {
    return "";
  }
  return tensor.name.ends_with(weight) ? tensor.name.substr(0, tensor.name.size() - weight.size()) + ".activation_scale"
                                       : tensor.name + "_activation_scale";
}

std::string SourceFloats::unreadable(const FileTensor& tensor) const {
  if (is_float(tensor.dtype)) {
    return "";
  }
  if (is_blocks(tensor)) {
    if (!in_mxfp4_) {
      return fmt::format("{} is in blocks of 4 bits, and config.json has no quantization_config that says \"mxfp4\"",
                         tensor.name);
    }
    const FileTensor* scales = weights_.find(scales_of(tensor));
    if (scales == nullptr) {
      return fmt::format("{} is in blocks of 4 bits, and their scales are missing: {}", tensor.name, scales_of(tensor));
    }
    std::vector<std::int64_t> wanted = tensor.sizes;
    wanted.pop_back();
    return scales->sizes == wanted && scales->dtype == DType::u8
               ? ""
               : fmt::format("{} is {} [{}], where [{}] of U8 were expected: one for each block of {}", scales->name,
                             scales->dtype.name(), fmt::join(scales->sizes, ", "), fmt::join(wanted, ", "),
                             tensor.name);
  }
  if (tensor.dtype != f8) {
    return fmt::format("{} is {}: F32, BF16, F16 and F8_E4M3 are read", tensor.name, tensor.dtype.name());
  }
  return unreadable_scaled(tensor);
}

SourceFloats::Grid SourceFloats::grid_of(const FileTensor& tensor, std::int64_t scales) const {
  Grid g;
  g.columns = tensor.sizes.back();
  g.rows = tensor.sizes[tensor.sizes.size() - 2];
  g.matrices = tensor.sizes.size() == 3 ? tensor.sizes[0] : 1;
  const bool whole = blocks_->rows == 0;
  // Blocks are of gate and up as one matrix; scales of whole matrices may be one each.
  if (whole && is_gate_and_up(tensor) && g.rows % 2 == 0 && scales != g.matrices) {
    g.matrices *= 2;
    g.rows /= 2;
  }
  g.block_rows = whole ? g.rows : blocks_->rows;
  g.block_columns = whole ? g.columns : blocks_->columns;
  g.down = blocks_in(g.rows, g.block_rows);
  g.across = blocks_in(g.columns, g.block_columns);
  return g;
}

std::string SourceFloats::unreadable_scaled(const FileTensor& tensor) const {
  if (!blocks_.has_value()) {
    return fmt::format("{} is F8_E4M3, and config.json has no quantization_config that says its scales", tensor.name);
  }
  if (tensor.sizes.size() != 2 && tensor.sizes.size() != 3) {
    return fmt::format("{} is F8_E4M3 with {} dimensions: matrices are read so, and experts in one tensor", tensor.name,
                       tensor.sizes.size());
  }
  const FileTensor* scales = weights_.find(scales_of(tensor));
  if (scales == nullptr) {
    return fmt::format("{} is F8_E4M3, and its scales are missing: {}", tensor.name, scales_of(tensor));
  }
  const bool whole = blocks_->rows == 0;
  // Here grids may be of both as one matrix or of each; transformers leaves such tensors as they are.
  if (const std::int64_t rows = tensor.sizes[tensor.sizes.size() - 2];
      !whole && is_gate_and_up(tensor) && rows % blocks_->rows != 0) {
    return fmt::format(
        "{} is F8_E4M3, and its {} rows, gate above up, are no whole number of blocks of {} x {}: which scale is whose "
        "is not known",
        tensor.name, rows, blocks_->rows, blocks_->columns);
  }
  const std::int64_t found =
      std::accumulate(scales->sizes.begin(), scales->sizes.end(), std::int64_t{1}, std::multiplies<>());
  const Grid g = grid_of(tensor, found);
  const std::int64_t experts = tensor.sizes.size() == 3 ? tensor.sizes[0] : 1;
  std::vector<std::int64_t> wanted;
  if (tensor.sizes.size() == 3) {
    wanted = {experts, g.matrices / experts * g.down, g.across};
  } else if (!whole) {
    wanted = {g.down, g.across};
  }
  // A scale for all of a matrix may stand in any number of dimensions, those of an expert together.
  const bool by_expert = scales->sizes.empty() || scales->sizes[0] == experts;
  const bool fits = whole ? found == g.scales() && by_expert : scales->sizes == wanted;
  if (!fits || !is_float(scales->dtype)) {
    return fmt::format(
        "{} is {} [{}], where [{}] of F32, BF16 or F16 were expected: {}", scales->name, scales->dtype.name(),
        fmt::join(scales->sizes, ", "), fmt::join(wanted, ", "),
        whole ? "one for each matrix" : fmt::format("blocks of {} x {}", blocks_->rows, blocks_->columns));
  }
  return "";
}

void SourceFloats::read(const std::string& name, std::int64_t begin, std::span<float> out) const {
  const FileTensor& tensor = *weights_.find(name);
  if (is_blocks(tensor)) {
    read_blocks(tensor, begin, out);
  } else if (tensor.dtype == f8) {
    read_scaled(tensor, begin, out);
  } else {
    widen(tensor.dtype, weights_.bytes(name).data() + static_cast<std::size_t>(begin) * tensor.dtype.bytes(), out);
  }
  const auto bad = std::find_if_not(out.begin(), out.end(), [](float value) { return std::isfinite(value); });
  require(bad == out.end(), "'{}' holds {} at element {}: the source is damaged", name, bad == out.end() ? 0 : *bad,
          begin + (bad - out.begin()));
}

void SourceFloats::read_blocks(const FileTensor& tensor, std::int64_t begin, std::span<float> out) const {
  const std::byte *from = weights_.bytes(tensor.name).data(), *scales = weights_.bytes(scales_of(tensor)).data();
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  for (std::int64_t at = begin; at < end;) {  // the rest of a block
    const std::int64_t block = at / of_block, stop = std::min((block + 1) * of_block, end);
    const float scale = power_of_two(std::to_integer<unsigned>(scales[block]));
    float values[16];
    std::transform(std::begin(quarters), std::end(quarters), values, [&](float value) { return value * scale; });
    float* to = out.data() + (at - begin);
    if (stop - at == of_block) {  // no element is looked at for which half it is
      for (const std::byte both : std::span(from + at / 2, of_block / 2)) {
        *to++ = values[std::to_integer<unsigned>(both) & 15u];
        *to++ = values[std::to_integer<unsigned>(both) >> 4];
      }
      at = stop;
    }
    for (; at < stop; ++at) {
      const unsigned both = std::to_integer<unsigned>(from[at / 2]);
      *to++ = values[at % 2 == 0 ? both & 15u : both >> 4];
    }
  }
}

void SourceFloats::read_scaled(const FileTensor& tensor, std::int64_t begin, std::span<float> out) const {
  const FileTensor& stored = *weights_.find(scales_of(tensor));
  const std::byte *from = weights_.bytes(tensor.name).data(), *scales = weights_.bytes(stored.name).data();
  const Grid g = grid_of(tensor, static_cast<std::int64_t>((stored.end - stored.begin) / stored.dtype.bytes()));
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  for (std::int64_t at = begin; at < end;) {  // the rest of a row within a block
    const std::int64_t row = at / g.columns, column = at % g.columns, block = column / g.block_columns;
    const std::int64_t stop = std::min({(block + 1) * g.block_columns - column + at, (row + 1) * g.columns, end});
    const std::int64_t down = row / g.rows * g.down + row % g.rows / g.block_rows;
    float scale;
    widen(stored.dtype, scales + static_cast<std::size_t>(down * g.across + block) * stored.dtype.bytes(), {&scale, 1});
    for (; at < stop; ++at) {
      out[static_cast<std::size_t>(at - begin)] =
          widened(element<Float8E4M3>(from, static_cast<std::size_t>(at))) * scale;
    }
  }
}

}  // namespace orthant
