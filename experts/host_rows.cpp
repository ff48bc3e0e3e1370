#include "experts/host_rows.h"

#include <orthant/device.h>

#include <cstdint>
#include <vector>

namespace orthant {

namespace {

Tensor offsets(std::vector<std::int32_t> values, bool in_host_memory, Stream& s) {
  const Shape shape{static_cast<std::int64_t>(values.size())};
  const Tensor t = in_host_memory ? s.device().host_empty(DType::i32, shape) : s.device().empty(DType::i32, shape);
  s.upload(t, values.data());
  return t;
}

}  // namespace

void HostRowsStream::grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& /*offset*/,
                                  Gemm how) {
  ParamGroup::OnHost& there = *group_.on_host;
  const std::int64_t experts = b.dim(0), matrix = b.dim(1) * b.dim(2);
  const std::int64_t begin =
      (static_cast<const std::byte*>(b.data()) - static_cast<const std::byte*>(group_.weight.data())) /
      static_cast<std::int64_t>(size_of(b.dtype()));
  // The experts' first matrices lie before their second ones, and each kind is whole.
  const std::int64_t first = begin / matrix % static_cast<std::int64_t>(there.rows.size());

  struct Trip {
    std::int64_t row = 0, rows = 0, expert = 0;  // of c and a; among those of b
    Tensor in, out;                              // in the host's memory
  };
  std::vector<Trip> away;
  struct Stretch {
    std::int64_t row = 0, expert = 0;
    std::vector<std::int32_t> offset = {0};
  };
  std::vector<Stretch> here;
  std::int64_t row = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto number = static_cast<std::size_t>(first + e);
    const std::int64_t rows = there.rows[number];
    if (there.experts[number]) {
      away.push_back({row, rows, e, {}, {}});
    } else {
      if (here.empty() || here.back().expert + static_cast<std::int64_t>(here.back().offset.size()) - 1 != e) {
        here.push_back({row, e});
      }
      here.back().offset.push_back(here.back().offset.back() + static_cast<std::int32_t>(rows));
    }
    row += rows;
  }

  for (Trip& part : away) {
    part.in = device().host_empty(a.dtype(), {part.rows, a.dim(1)});
    part.out = device().host_empty(c.dtype(), {part.rows, c.dim(1)});
    main_.download(part.in, a.rows(part.row, part.rows));
    there.to_host += static_cast<std::int64_t>(part.in.bytes());
    there.to_device += static_cast<std::int64_t>(part.out.bytes());
  }
  if (!away.empty()) {
    there.stream->wait(main_.record());
  }
  for (const Trip& part : away) {
    const Tensor weight = there.weight.slice(begin + part.expert * matrix, {1, b.dim(1), b.dim(2)});
    there.stream->grouped_gemm(part.out, part.in, weight,
                               offsets({0, static_cast<std::int32_t>(part.rows)}, true, *there.stream), how);
  }
  for (const Stretch& part : here) {
    const auto count = static_cast<std::int64_t>(part.offset.size()) - 1;
    main_.grouped_gemm(c.rows(part.row, part.offset.back()), a.rows(part.row, part.offset.back()),
                       b.rows(part.expert, count), offsets(part.offset, false, main_), how);
  }
  if (!away.empty()) {
    main_.wait(there.stream->record());
  }
  for (const Trip& part : away) {
    main_.upload(c.rows(part.row, part.rows), part.out);
  }
}

}  // namespace orthant
