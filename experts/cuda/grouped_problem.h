// What one expert's matrix product is, derived from the offsets that lie on the device. Host and device alike.
#pragma once

#include <orthant/random.h>

#include <cstdint>

namespace orthant::cuda {

// How a, b and c lie. R rows in all, of which expert e has offset[e] .. offset[e + 1].
//   nt: c [R, n] = a [R, k] b[e]^T, b [E, n, k]      nn: c [R, n] = a [R, k] b[e], b [E, k, n]
//   tn: c [E, m, n] (+)= a[rows of e]^T b[rows of e], a [R, m], b [R, n]
enum class GroupedLayout { nt, nn, tn };

struct GroupedProblem {
  GroupedLayout layout = GroupedLayout::nt;
  std::int64_t experts = 0;
  std::int64_t rows = 0;  // of a: offset[experts] at most
  std::int64_t m = 0;     // tn only
  std::int64_t n = 0;
  std::int64_t k = 0;  // nt and nn only
  float beta = 0;      // 0 or 1: c is added to
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const std::int32_t* offset = nullptr;  // [experts + 1], on the device
};

// The rows of expert e: its offsets, cut off at the rows there are.
struct RowRange {
  std::int64_t begin, end;
};

ORTHANT_HOST_DEVICE inline RowRange rows_between(const GroupedProblem& p, std::int64_t begin, std::int64_t end) {
  begin = begin < 0 ? 0 : begin < p.rows ? begin : p.rows;
  end = end < begin ? begin : end < p.rows ? end : p.rows;
  return {begin, end};
}

ORTHANT_HOST_DEVICE inline RowRange rows_of(const GroupedProblem& p, std::int64_t e) {
  return rows_between(p, p.offset[e], p.offset[e + 1]);
}

// One product [m, k] x [k, n] and where its operands begin, in elements.
struct Group {
  std::int64_t m, n, k, a, b, c;
};

ORTHANT_HOST_DEVICE inline Group group_of(const GroupedProblem& p, std::int64_t e, RowRange rows) {
  const std::int64_t count = rows.end - rows.begin;
  if (p.layout == GroupedLayout::tn) {
    return {p.m, p.n, count, rows.begin * p.m, rows.begin * p.n, e * p.m * p.n};
  }
  return {count, p.n, p.k, rows.begin * p.k, e * p.n * p.k, rows.begin * p.n};
}

// Elements from one row to the next of the row-major a, b and c.
struct RowStrides {
  std::int64_t a, b, c;
};

ORTHANT_HOST_DEVICE inline RowStrides strides_of(const GroupedProblem& p) {
  const bool tn = p.layout == GroupedLayout::tn;
  return {tn ? p.m : p.k, p.layout == GroupedLayout::nt ? p.k : p.n, p.n};
}

}  // namespace orthant::cuda
