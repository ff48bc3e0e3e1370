#include "apps/check/adjoints.h"

#include <orthant/random.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/arch/links.h"
#include "core/plan/batch_share.h"

namespace orthant {
namespace {

// Whether each rank along the axis has a tensor of its own.
bool differs(const Plan& plan, AxisId axis, const Sharing& sharing) {
  const Mesh& mesh = plan.mesh();
  return mesh.splits(axis, Dim::batch, sharing.tokens) || mesh.splits(axis, Dim::position, sharing.tokens) ||
         mesh.splits(axis, Dim::layer, sharing.tokens) ||
         (sharing.own.has_value() && mesh.splits(axis, *sharing.own, sharing.tokens));
}

// The weight of this rank's tensor, and a number that ranks with the same tensor share.
struct Place {
  double weight = 1;
  std::uint64_t number = 0;
};
Place place_of(const Plan& plan, const Sharing& sharing) {
  Place place;
  const auto& axes = plan.mesh().axes();
  for (AxisId axis = 0; axis < static_cast<AxisId>(axes.size()); ++axis) {
    const AxisSpec& spec = axes[axis];
    if (!spec.carve_of.empty()) {
      continue;
    }
    const std::uint64_t size = static_cast<std::uint64_t>(spec.size);
    const bool own = differs(plan, axis, sharing);
    place.weight /= own ? 1 : spec.size;
    place.number = place.number * size + (own ? static_cast<std::uint64_t>(plan.mesh().coordinate(axis)) : 0);
  }
  return place;
}

std::vector<float> random_values(std::int64_t n, std::uint32_t site, std::uint64_t number) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = normal({.seed = number, .site = site}, i);
  }
  return values;
}

Tensor to_device(const std::vector<float>& values, Shape shape, Stream& s) {
  Tensor t = s.device().empty(DType::f32, shape);
  s.upload(t, values.data());
  return t;
}

std::vector<float> to_host(const Tensor& t, Stream& s) {
  std::vector<float> values(t.elements());
  s.download(values.data(), t);
  return values;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

double norm(const std::vector<float>& a) {
  return std::sqrt(dot(a, a));
}

// Of the tensor that is given to the site in forward: [rows, columns].
Shape shape_before(const Plan& plan, const SiteInfo& info) {
  const Settings& settings = plan.settings();
  const Region region = info.before.tokens;
  const std::int64_t held = plan.held_positions(region, plan.mesh().rank());
  const std::int64_t rows = plan.rows(region, largest_share(plan).micro_batch * held).count;
  switch (info.columns) {
    case SiteInfo::Columns::width: return {rows, settings.model.d_model};
    case SiteInfo::Columns::heads:
      return {rows, plan.part(Dim::head, settings.model.heads, region).count * head_dim_of(settings)};
    case SiteInfo::Columns::choices: return {rows, settings.moe.top_k};
  }
  return {};
}

}  // namespace

void InnerProducts::add(const std::string& where, double forward, double backward, double scale) {
  const std::lock_guard lock(mutex_);
  Pair& pair = pairs_[where];
  pair.forward += forward;
  pair.backward += backward;
  pair.scale += scale;
}

void InnerProducts::fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failed_.empty()) {
    failed_ = what;
  }
}

std::string InnerProducts::first_wrong() const {
  const std::lock_guard lock(mutex_);
  if (!failed_.empty()) {
    return failed_;
  }
  for (const auto& [where, pair] : pairs_) {
    if (!(std::abs(pair.forward - pair.backward) <= 1e-5 * pair.scale)) {
      return fmt::format("{}: <f(x), y> = {:.6g}, but <x, f*(y)> = {:.6g}", where, pair.forward, pair.backward);
    }
  }
  return "";
}

void add_boundaries(InnerProducts& to, const Plan& plan, Stream& stream) {
  std::uint32_t number = 0;
  for (const SiteInfo& info : sites()) {
    const Site site = info.site;
    const std::string where = name_of(site);
    const Place from = place_of(plan, info.before), into = place_of(plan, info.after);
    const Shape shape = shape_before(plan, info);
    number += 2;
    const std::vector<float> x = random_values(shape.elements(), number, from.number);
    const Tensor fx = plan.cross(site, to_device(x, shape, stream), stream);
    const std::vector<float> fx_host = to_host(fx, stream);
    const std::vector<float> y = random_values(fx.elements(), number + 1, into.number);
    const Tensor back = plan.cross_back(site, to_device(y, fx.shape(), stream), stream);
    if (back.shape() != shape) {
      to.fail(fmt::format("{}: forward takes {} and gives {}, but backward gives {}", where, shape, fx.shape(),
                          back.shape()));
      continue;
    }
    const std::vector<float> back_host = to_host(back, stream);
    to.add(where, into.weight * dot(fx_host, y), from.weight * dot(x, back_host),
           norm(fx_host) * norm(y) + norm(x) * norm(back_host));
  }
}

namespace {

Tensor counts_of(const std::vector<std::int32_t>& rows, Stream& s) {
  const Tensor counts = s.device().empty(DType::i32, {static_cast<std::int64_t>(rows.size())});
  s.upload(counts, rows.data());
  return counts;
}

// All chunks of an exchange, one after another. What it does not write stays NaN.
Tensor exchanged(TokenExchange& exchange, const Tensor& rows, const ExchangePlan& plan, bool to_experts, Stream& s) {
  const std::vector<std::int64_t>& arriving = to_experts ? plan.local : plan.send;
  const Tensor to =
      s.device().empty(rows.dtype(), {std::accumulate(arriving.begin(), arriving.end(), std::int64_t{0}), rows.dim(1)});
  s.fill(to, std::numeric_limits<double>::quiet_NaN());
  const auto experts = static_cast<std::ptrdiff_t>(plan.local.size()) / exchange.chunks();
  std::int64_t begin = 0;
  for (int chunk = 0; chunk < exchange.chunks(); ++chunk) {
    const auto first = plan.local.begin() + chunk * experts;
    const std::int64_t count = std::accumulate(first, first + experts, std::int64_t{0});
    if (to_experts) {
      exchange.to_experts(to.rows(begin, count), rows, plan, chunk, s);
    } else {
      exchange.to_tokens(to, rows.rows(begin, count), plan, chunk, s);
    }
    begin += count;
  }
  return to;
}

}  // namespace

void add_exchange(InnerProducts& to, const Plan& plan, Stream& stream) {
  TokenExchange& exchange = *plan.exchange();
  const std::int64_t experts = plan.settings().moe.experts, d = plan.settings().model.d_model;
  const std::uint64_t place = place_of(plan, {Region::experts}).number;
  std::vector<std::int32_t> rows_of(experts, 3);
  std::vector<float> expert_of;
  for (std::size_t e = 0; e < rows_of.size(); ++e) {
    if (!exchange.equal_blocks()) {  // 0 to 4 each, now and then none
      rows_of[e] = static_cast<std::int32_t>(below({.seed = place, .site = 1000}, e, 5));
    }
    expert_of.insert(expert_of.end(), static_cast<std::size_t>(rows_of[e] * d), static_cast<float>(e));
  }
  const Shape shape{std::accumulate(rows_of.begin(), rows_of.end(), std::int64_t{0}), d};
  const ExchangePlan rows = exchange.equal_blocks() ? exchange.plan_equal(experts, rows_of.front())
                                                    : exchange.plan(counts_of(rows_of, stream), stream, [] {});

  const Tensor tagged = exchanged(exchange, to_device(expert_of, shape, stream), rows, true, stream);
  const std::vector<float> arrived = to_host(tagged, stream);
  const std::int64_t first = plan.part(Dim::expert, experts, Region::experts).begin;
  std::size_t at = 0;
  for (std::size_t e = 0; e < rows.local.size(); ++e) {
    for (std::int64_t i = 0; i < rows.local[e] * d; ++i, ++at) {
      const std::int64_t expert = first + static_cast<std::int64_t>(e);
      if (arrived[at] != static_cast<float>(expert)) {
        to.fail(fmt::format("a row of expert {} stands among those of expert {} on rank {}", arrived[at], expert,
                            plan.mesh().rank()));
      }
    }
  }
  const std::uint64_t rank = static_cast<std::uint64_t>(plan.mesh().rank());
  const std::vector<float> x = random_values(shape.elements(), 1001, place);
  const Tensor fx = exchanged(exchange, to_device(x, shape, stream), rows, true, stream);
  const std::vector<float> fx_host = to_host(fx, stream);
  const std::vector<float> y = random_values(fx.elements(), 1002, rank);
  const std::vector<float> back =
      to_host(exchanged(exchange, to_device(y, fx.shape(), stream), rows, false, stream), stream);
  to.add("rows to experts and back", dot(fx_host, y), dot(x, back), norm(fx_host) * norm(y) + norm(x) * norm(back));
  if (to_host(exchanged(exchange, to_device(fx_host, fx.shape(), stream), rows, false, stream), stream) != x) {
    to.fail(fmt::format("rows that went to the experts of rank {} came back changed or in another order", rank));
  }
}

}  // namespace orthant
