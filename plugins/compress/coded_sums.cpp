#include "coded_sums.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <orthant/device.h>
#include <orthant/group.h>
#include <orthant/settings.h>

namespace orthant::compress {

struct Part {
  // Elements of one parameter.
  struct Piece {
    std::int64_t begin = 0, count = 0;
    std::int64_t at = 0;  // where its code begins among those of the part
  };
  std::vector<Piece> pieces;
  std::int64_t begin = 0, elements = 0, bytes = 0;
};

namespace {

// Part r of the group, for rank r.
std::vector<Part> parts_of(const ParamGroup& group, const Code& code) {
  const std::int64_t ranks = group.sum->size(), share = (group.elements + ranks - 1) / ranks;
  std::vector<Part> parts(static_cast<std::size_t>(ranks));
  for (std::int64_t r = 0; r < ranks; ++r) {
    Part& part = parts[static_cast<std::size_t>(r)];
    part.begin = std::min(r * share, group.elements);
    part.elements = std::min(share, group.elements - part.begin);
    for (const Param& p : group.params) {
      const std::int64_t begin = std::max(p.begin, part.begin),
                         end = std::min(p.begin + p.elements(), part.begin + part.elements);
      if (begin < end) {
        part.pieces.push_back({begin, end - begin, part.bytes});
        part.bytes += code.bytes(end - begin);
      }
    }
  }
  return parts;
}

template <class T>
std::span<T> piece_of(std::span<T> all, std::int64_t begin, std::int64_t count) {
  return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

// The code of each piece of `x`, which begins at element `origin` of the group, and so does `left`.
void encode_part(const Code& code, const Part& part, std::span<std::uint8_t> to, std::span<const float> x,
                 std::span<float> left, std::int64_t origin) {
  for (const Part::Piece& piece : part.pieces) {
    encode(code, piece_of(to, piece.at, code.bytes(piece.count)), piece_of(x, piece.begin - origin, piece.count),
           piece_of(left, piece.begin - origin, piece.count));
  }
}

void decode_part(const Code& code, const Part& part, std::span<float> to, std::span<const std::uint8_t> from,
                 std::int64_t origin) {
  for (const Part::Piece& piece : part.pieces) {
    add_decoded(code, piece_of(to, piece.begin - origin, piece.count),
                piece_of(from, piece.at, code.bytes(piece.count)));
  }
}

// grad <- this rank's part of beta1 m + (1 - beta1) g. share: its part of m.
void add_momentum(const Tensor& grad, const Tensor& share, double beta1, Stream& s) {
  const Tensor old = s.device().empty(DType::f32, share.shape());
  s.copy(old, share);
  s.scale(old, static_cast<float>(beta1));
  s.scale(grad, static_cast<float>(1 - beta1));
  s.add(grad, old);
}

// A momentum that is not finite is forgotten, as the core leaves out the step.
void keep_momentum(const Tensor& share, const Tensor& momentum, std::int64_t ranks, Stream& s) {
  s.apply({.name = "compress/keep_momentum",
           .inputs = {momentum, share},
           .outputs = {share},
           .host = [ranks](const HostArguments& a) {
             const auto m = a.input<float>(0);
             if (std::all_of(m.begin(), m.end(), [](float x) { return std::isfinite(x); })) {
               std::transform(m.begin(), m.end(), a.output<float>(0).begin(),
                              [&](float x) { return x / static_cast<float>(ranks); });
             }
           }});
}

}  // namespace

std::vector<StateSpec> CodedSums::state(const ParamGroup& group) const {
  refuse_shards(group);
  std::vector<StateSpec> states = {{.name = "residual", .kind = StateKind::summed},
                                   {.name = "server", .kind = StateKind::summed}};
  if (options_.momentum) {
    if (group.away.state && !group.frozen) {
      throw SettingError("optimizer.name",
                         fmt::format("[optimizer] name: \"onebit_adam\" begins with the moments of '{}', which stay "
                                     "elsewhere between their uses\nleave the offload of states out",
                                     group.name));
    }
    states.push_back({.name = "momentum", .kind = StateKind::summed});
  }
  return states;
}

// Where the ranks' shares add up to nothing, as at the end of the warm-up and where a resume brings none, the momentum
// is the optimizer's, of the ranges that ranks own.
void CodedSums::begin_momentum(ParamGroup& group, Stream& s) const {
  const auto moment = std::find_if(group.states.begin(), group.states.end(),
                                   [](const ParamState& state) { return state.name == "moment1"; });
  require(moment != group.states.end() && moment->code == StateCode::none && moment->elements == group.owned_elements,
          "onebit_adam keeps moment1 of every element of '{}', uncoded", group.name);
  const Tensor share = group.state("compress", "momentum").tensor;
  const std::int64_t ranks = group.sum->size();
  const Tensor known = s.device().empty(DType::f32, share.shape());
  s.copy(known, share);
  group.sum->all_reduce(known, ReduceOp::sum, s);
  Tensor whole = moment->values;
  if (group.owned_elements != group.padded) {
    require(group.owned_elements * ranks == group.padded, "'{}' is owned by some of the ranks that sum it", group.name);
    whole = s.device().empty(DType::f32, share.shape());
    group.sum->all_gather(whole, moment->values, s);
  }
  s.apply({.name = "compress/begin_momentum",
           .inputs = {known, whole, share},
           .outputs = {share},
           .host = [ranks](const HostArguments& a) {
             const auto sum = a.input<float>(0), m = a.input<float>(1);
             if (std::all_of(sum.begin(), sum.end(), [](float x) { return x == 0; })) {
               std::transform(m.begin(), m.end(), a.output<float>(0).begin(),
                              [&](float x) { return x / static_cast<float>(ranks); });
             }
           }});
}

void CodedSums::sum(ParamGroup& group, const HookContext& at) {
  Stream& s = at.stream;
  if (options_.momentum && begun_.insert(group.id).second) {
    begin_momentum(group, s);
  }
  const std::vector<Part> parts = parts_of(group, options_.code);
  const std::int64_t ranks = group.sum->size();
  const Tensor grad = group.grad.slice(0, {group.elements});
  const auto state = [&](const char* name) { return group.state("compress", name).tensor.slice(0, {group.elements}); };
  if (options_.momentum) {
    add_momentum(grad, state("momentum"), options_.beta1, s);
  }
  if (ranks > 1) {
    exchange(group, parts, s);
  }
  if (options_.momentum) {
    keep_momentum(state("momentum"), grad, ranks, s);
  }
}

void CodedSums::exchange(ParamGroup& group, const std::vector<Part>& parts, Stream& s) const {
  const Code code = options_.code;
  const std::int64_t ranks = group.sum->size(), elements = group.elements;
  const Part own = parts[static_cast<std::size_t>(group.sum->rank())];
  std::int64_t total = 0, largest = 1;
  std::vector<std::int64_t> sends;
  for (const Part& part : parts) {
    sends.push_back(part.bytes);
    total += part.bytes;
    largest = std::max(largest, part.bytes);
  }
  const std::vector<std::int64_t> receives(parts.size(), own.bytes);
  Device& device = s.device();
  const Tensor grad = group.grad.slice(0, {elements});
  const Tensor residual = group.state("compress", "residual").tensor.slice(0, {elements});
  const Tensor server = group.state("compress", "server").tensor.slice(0, {elements});

  const Tensor sent = device.empty(DType::u8, {std::max<std::int64_t>(total, 1)});
  s.apply({.name = "compress/encode",
           .inputs = {grad, residual},
           .outputs = {sent, residual},
           .host = [code, parts](const HostArguments& a) {
             std::int64_t at = 0;
             for (const Part& part : parts) {
               encode_part(code, part, piece_of(a.output<std::uint8_t>(0), at, part.bytes), a.input<float>(0),
                           a.output<float>(1), 0);
               at += part.bytes;
             }
           }});
  const Tensor received = device.empty(DType::u8, {std::max<std::int64_t>(ranks * own.bytes, 1)});
  group.sum->all_to_all(received.slice(0, {ranks * own.bytes}), receives, sent.slice(0, {total}), sends, s);

  const Tensor coded = device.empty(DType::u8, {largest});
  s.fill(coded, 0);
  s.apply({.name = "compress/sum",
           .inputs = {received, server, coded},
           .outputs = {coded, server},
           .host = [code, own, ranks](const HostArguments& a) {
             std::vector<float> sum(static_cast<std::size_t>(own.elements));
             for (std::int64_t r = 0; r < ranks; ++r) {
               decode_part(code, own, sum, piece_of(a.input<std::uint8_t>(0), r * own.bytes, own.bytes), own.begin);
             }
             encode_part(code, own, a.output<std::uint8_t>(0), sum,
                         piece_of(a.output<float>(1), own.begin, own.elements), own.begin);
           }});
  const Tensor all = device.empty(DType::u8, {ranks * largest});
  group.sum->all_gather(all, coded, s);
  s.fill(grad, 0);
  s.apply({.name = "compress/decode",
           .inputs = {all, grad},
           .outputs = {grad},
           .host = [code, parts, largest](const HostArguments& a) {
             std::int64_t at = 0;
             for (const Part& part : parts) {
               decode_part(code, part, a.output<float>(0), piece_of(a.input<std::uint8_t>(0), at, part.bytes), 0);
               at += largest;
             }
           }});
}

}  // namespace orthant::compress
