// Argument checks of operations, the same for every device. Each names the operation, the argument, what was expected
// and what was found.
#pragma once

#include <orthant/error.h>
#include <orthant/tensor.h>

#include <algorithm>
#include <initializer_list>
#include <string>

namespace orthant {

inline void require_defined(const char* operation, const char* name, const Tensor& t) {
  require(t.defined(), "{}: {} is undefined", operation, name);
}

inline void require_dtype(const char* operation, const char* name, const Tensor& t,
                          std::initializer_list<DType> allowed) {
  require_defined(operation, name, t);
  if (std::find(allowed.begin(), allowed.end(), t.dtype()) == allowed.end()) {
    std::string names;
    for (const DType dtype : allowed) {
      names += names.empty() ? "" : " or ";
      names += name_of(dtype);
    }
    fail("{}: {} must be {}, got {} {}", operation, name, names, name_of(t.dtype()), t.shape());
  }
}

// f32 or bf16.
inline void require_float(const char* operation, const char* name, const Tensor& t) {
  require_dtype(operation, name, t, {DType::f32, DType::bf16});
}

inline void require_shape(const char* operation, const char* name, const Tensor& t, const Shape& expected) {
  require_defined(operation, name, t);
  require(t.shape() == expected, "{}: {} must have shape {}, got {}", operation, name, expected, t.shape());
}

inline void require_elements(const char* operation, const char* name, const Tensor& t, std::int64_t expected) {
  require_defined(operation, name, t);
  require(t.elements() == expected, "{}: {} must have {} elements, got shape {}", operation, name, expected, t.shape());
}

// dtype and shape in one.
inline void require_tensor(const char* operation, const char* name, const Tensor& t, DType dtype,
                           const Shape& expected) {
  require_dtype(operation, name, t, {dtype});
  require_shape(operation, name, t, expected);
}

inline void require_rank(const char* operation, const char* name, const Tensor& t, int rank) {
  require_defined(operation, name, t);
  require(t.rank() == rank, "{}: {} must have {} dimensions, got shape {}", operation, name, rank, t.shape());
}

}  // namespace orthant
