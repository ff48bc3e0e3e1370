#include <orthant/tensor.h>

namespace orthant {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::f64: return "f64";
    case DType::i8: return "i8";
    case DType::f8_e4m3: return "f8_e4m3";
    case DType::f8_e5m2: return "f8_e5m2";
  }
  return "?";
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string((*this)[i]);
  }
  return text + "]";
}

Tensor::Tensor(const Tensor&) = default;
Tensor::Tensor(Tensor&&) noexcept = default;
Tensor& Tensor::operator=(const Tensor&) = default;
Tensor& Tensor::operator=(Tensor&&) noexcept = default;
Tensor::~Tensor() = default;

Tensor::Tensor(std::shared_ptr<Storage> storage, std::size_t byte_offset, DType dtype, Shape shape)
    : storage_(std::move(storage)), byte_offset_(byte_offset), dtype_(dtype), shape_(shape) {
  require(storage_ != nullptr && byte_offset_ + bytes() <= storage_->bytes(),
          "a {} tensor of shape {} at byte {} does not fit its storage", name_of(dtype), shape, byte_offset);
}

Tensor Tensor::view(Shape shape) const {
  require(shape.elements() == elements(), "cannot view {} as {}", shape_, shape);
  return Tensor(storage_, byte_offset_, dtype_, shape);
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const {
  require(rank() > 0 && begin >= 0 && count >= 0 && begin + count <= dim(0), "rows [{}, {}) are outside {}", begin,
          begin + count, shape_);
  Shape shape = shape_;
  shape.set(0, count);
  const std::int64_t row = dim(0) == 0 ? 0 : elements() / dim(0);
  return Tensor(storage_, byte_offset_ + static_cast<std::size_t>(begin * row) * size_of(dtype_), dtype_, shape);
}

Tensor Tensor::slice(std::int64_t offset, Shape shape) const {
  require(offset >= 0 && offset + shape.elements() <= elements(), "slice {} at {} is outside {}", shape, offset,
          shape_);
  return Tensor(storage_, byte_offset_ + static_cast<std::size_t>(offset) * size_of(dtype_), dtype_, shape);
}

}  // namespace orthant
