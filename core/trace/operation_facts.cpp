#include "core/trace/operation_facts.h"

#include <array>
#include <cmath>

namespace orthant {
namespace {

// For c [m, n], a and b of m k and k n elements, in either order: the root of their product is m n k.
double product_flops(double c, double a, double b) {
  return 2 * std::sqrt(c * a * b);
}

}  // namespace

SpanKind kind_of_operation(std::string_view name) {
  return name == "upload" || name == "download" ? SpanKind::transfer : SpanKind::compute;
}

bool is_grouped_product(std::string_view name) {
  return name == "grouped_gemm" || name == "grouped_gemm_tn";
}

SpanFacts facts_of_operation(std::string_view name, std::initializer_list<Tensor> tensors) {
  SpanFacts facts{.bytes = 0};
  std::array<const Tensor*, 3> t{};
  std::size_t count = 0;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    facts.bytes += static_cast<std::int64_t>(tensor.bytes());
    if (count < t.size()) {
      t[count++] = &tensor;
    }
  }
  if (count > 0 && t[0]->rank() > 0) {
    facts.rows = t[0]->dim(0);
  }
  // A query sees half of its sequence on average; the backward pass is twice the forward pass.
  if (name == "attention" || name == "attention_backward") {
    const bool backward = name == "attention_backward";
    const Tensor& q = tensors.begin()[backward ? 4 : 2];
    const Tensor& lse = tensors.begin()[backward ? 8 : 1];
    facts.flops = (backward ? 4 : 2) * q.elements() * lse.dim(2);
  }
  if (count < t.size()) {
    return facts;
  }
  const auto elements = [&](std::size_t i) { return static_cast<double>(t[i]->elements()); };
  if (name == "gemm") {
    facts.flops = std::llround(product_flops(elements(0), elements(1), elements(2)));
  } else if (name == "grouped_gemm" && t[1]->dim(0) > 0) {
    facts.flops = std::llround(2 * elements(0) * elements(1) / static_cast<double>(t[1]->dim(0)));
  } else if (name == "grouped_gemm_tn") {
    facts.rows = t[1]->dim(0);
    facts.flops = facts.rows > 0 ? std::llround(2 * elements(1) * elements(2) / static_cast<double>(facts.rows)) : 0;
  }
  return facts;
}

}  // namespace orthant
