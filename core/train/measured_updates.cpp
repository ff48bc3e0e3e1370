#include "core/train/measured_updates.h"

#include <orthant/settings.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/layers/parameter_state.h"
#include "core/layers/state_storage.h"
#include "core/train/low_memory_update.h"
#include "core/train/parameter_ranks.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

std::vector<AxisId> both(std::vector<AxisId> a, const std::vector<AxisId>& b) {
  std::copy_if(b.begin(), b.end(), std::back_inserter(a),
               [&](AxisId axis) { return std::find(a.begin(), a.end(), axis) == a.end(); });
  return a;
}

int rounds_of(const Treatment& treatment) {
  int rounds = 0;
  for (const Measure& measure : treatment.measures) {
    rounds = std::max(rounds, measure.round + 1);
  }
  return rounds;
}

bool asks_for(const Measure& measure, StateOver over) {
  return over == StateOver::rows ? measure.rows : over == StateOver::columns ? measure.columns : measure.parameter;
}

Tensor& number_of(Measured& measured, StateOver over) {
  return over == StateOver::rows ? measured.rows : over == StateOver::columns ? measured.columns : measured.parameter;
}

constexpr StateOver overs[] = {StateOver::rows, StateOver::columns, StateOver::parameter};

Tensor on(Stream& home, Stream& main, DType dtype, std::int64_t n) {
  Device& device = main.device();
  return &home == &main ? device.empty(dtype, {n}) : device.host_empty(dtype, {n});
}

// A rectangle of a parameter's slice.
struct Rectangle {
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;
  Tensor of_rows(const Tensor& t) const { return t.defined() ? t.slice(row, {rows}) : t; }
  Tensor of_columns(const Tensor& t) const { return t.defined() ? t.slice(column, {columns}) : t; }
};

// work(wide, slice, rectangle): what this rank owns of a parameter, some rows at a time.
template <class Work>
void each_rectangle(const ParamGroup& group, std::size_t param, const Treatment& treatment,
                    const std::vector<Measured>& known, const Settings& settings, Stream& home, Work work) {
  const Param& p = group.params[param];
  for (const OwnedPiece& piece : owned_pieces(group, p)) {
    const std::int64_t columns = piece.size[1], most_rows = std::max<std::int64_t>(most_widened / columns, 1);
    for (std::int64_t row = 0; row < piece.size[0]; row += most_rows) {
      const std::int64_t rows = std::min(most_rows, piece.size[0] - row);
      const Rectangle at{piece.offset[0] - p.offset[0] + row, piece.offset[1] - p.offset[1], rows, columns};
      WideElements wide(group, piece.begin + row * columns, rows * columns, settings, home);
      UpdateSlice slice = wide.widen(treatment);
      const Shape shape{rows, columns};
      slice.master = slice.master.view(shape);
      slice.weight = slice.weight.view(shape);
      slice.grad = slice.grad.view(shape);
      const std::span<const OptimizerState> states = own_states(treatment);
      for (std::size_t i = 0; i < states.size(); ++i) {
        if (states[i].over == StateOver::elements) {
          slice.state[i] = slice.state[i].view(shape);
          continue;
        }
        const Tensor numbers = numbers_of(group, states[i], param);
        slice.state[i] = states[i].over == StateOver::rows      ? at.of_rows(numbers)
                         : states[i].over == StateOver::columns ? at.of_columns(numbers)
                                                                : numbers;
      }
      for (const Measured& all : known) {
        slice.measured.push_back(
            {.rows = at.of_rows(all.rows), .columns = at.of_columns(all.columns), .parameter = all.parameter});
      }
      work(wide, slice, at);
    }
  }
}

}  // namespace

// As WholeParameters: every rank asks for every group in the table's order, held or not.
MeasuredUpdates::MeasuredUpdates(Plan& plan, ParamStore& store, Stream& stream)
    : plan_(plan), store_(store), stream_(stream), optimizer_(optimizer_of(plan.settings())) {
  for (const LayerSpecs& layer : parameters_of(plan.links())) {
    for (const ParamSpec& spec : layer.params) {
      Treatment treatment = treatment_of(spec, plan.settings());
      if (treatment.measures.empty()) {
        continue;
      }
      Group* const sharing = sharing_ranks(plan, spec);
      for (const auto& axes : {axes_of_dimension(plan, spec, 0), axes_of_dimension(plan, spec, 1),
                               both(axes_of_dimension(plan, spec, 0), axes_of_dimension(plan, spec, 1))}) {
        slicing_ranks(plan, axes);
      }
      const auto [group, param] = store.find(spec.name);
      if (group == nullptr) {
        continue;
      }
      OfGroup& of = groups_[group->id];
      of.sharing = sharing;
      of.all.push_back(measuring(*group, static_cast<std::size_t>(param - group->params.data()), std::move(treatment)));
    }
  }
  for (auto& [id, of] : groups_) {
    lay_out(*store.groups()[static_cast<std::size_t>(id)], of);
  }
  agree_on_sharing(stream);
}

// rows, columns: along which of them the axes' ranks hold other elements.
MeasuredUpdates::Across MeasuredUpdates::across(const Param& p, const std::vector<AxisId>& axes, bool rows,
                                                bool columns) const {
  Group* const ranks = slicing_ranks(plan_, axes);
  if (ranks == nullptr || ranks->size() == 1) {
    return {};
  }
  const auto same = [&](int rank) {
    Param other{.spec = p.spec};
    plan_.place(other, rank);
    return (!rows || other.offset[0] == p.offset[0]) && (!columns || other.offset[1] == p.offset[1]);
  };
  const auto first = std::find_if(ranks->members().begin(), ranks->members().end(), same);
  return {ranks, *first == plan_.mesh().rank()};
}

// What is made over a row has parts where ranks split columns.
MeasuredUpdates::Measuring MeasuredUpdates::measuring(const ParamGroup& group, std::size_t param,
                                                      Treatment treatment) const {
  const Param& p = group.params[param];
  const std::vector<AxisId> of_rows = axes_of_dimension(plan_, p.spec, 0),
                            of_columns = axes_of_dimension(plan_, p.spec, 1);
  return {.param = param,
          .treatment = std::move(treatment),
          .rows = across(p, of_columns, false, true),
          .columns = across(p, of_rows, true, false),
          .parameter = across(p, both(of_rows, of_columns), true, true)};
}

void MeasuredUpdates::lay_out(const ParamGroup& group, OfGroup& of) const {
  int rounds = 0;
  for (const Measuring& one : of.all) {
    rounds = std::max(rounds, rounds_of(one.treatment));
  }
  of.rounds.resize(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    for (const ReduceOp how : {ReduceOp::sum, ReduceOp::max}) {
      Alike alike{.how = how, .segments = {}, .numbers = 0};
      std::vector<Group*> met;
      for (std::size_t i = 0; i < of.all.size(); ++i) {
        const Param& p = group.params[of.all[i].param];
        const std::vector<Measure>& measures = of.all[i].treatment.measures;
        for (std::size_t m = 0; m < measures.size(); ++m) {
          for (const StateOver over : overs) {
            if (measures[m].round != round || measures[m].how != how || !asks_for(measures[m], over)) {
              continue;
            }
            Group* const ranks = of.all[i].of(over).ranks;
            if (std::find(met.begin(), met.end(), ranks) == met.end()) {
              met.push_back(ranks);
            }
            const std::int64_t count = over == StateOver::rows ? p.size[0] : over == StateOver::columns ? p.size[1] : 1;
            alike.segments.push_back({.measuring = i, .measure = m, .over = over, .begin = 0, .count = count});
          }
        }
      }
      const auto place = [&](const Segment& s) {
        return std::find(met.begin(), met.end(), of.all[s.measuring].of(s.over).ranks) - met.begin();
      };
      std::stable_sort(alike.segments.begin(), alike.segments.end(),
                       [&](const Segment& a, const Segment& b) { return place(a) < place(b); });
      for (Segment& segment : alike.segments) {
        segment.begin = alike.numbers;
        alike.numbers += segment.count;
      }
      if (alike.numbers > 0) {
        of.rounds[static_cast<std::size_t>(round)].push_back(std::move(alike));
      }
    }
  }
}

// A keeper may have shared out a group on some of its ranks only.
void MeasuredUpdates::agree_on_sharing(Stream& stream) {
  for (auto& [id, of] : groups_) {
    const ParamGroup& group = *store_.groups()[static_cast<std::size_t>(id)];
    if (of.sharing == nullptr || of.sharing->size() == 1) {
      of.sharing = nullptr;
      continue;
    }
    const bool whole = group.owned_begin == 0 && group.owned_elements >= group.elements;
    std::vector<std::int64_t> differs = {whole ? 0 : 1};
    all_reduce_values(differs, ReduceOp::max, *of.sharing, stream);
    if (differs[0] == 0) {
      of.sharing = nullptr;
    }
  }
}

UpdateStep MeasuredUpdates::step_of(const UpdateStep& step, const Param& p, const Treatment& treatment) const {
  UpdateStep of = step;
  of.lr = step.lr * p.spec.lr_scale;
  of.weight_decay = p.spec.decay ? step.settings.weight_decay : 0.0;
  of.method = treatment.method;
  of.shape = p.spec.global;
  return of;
}

void MeasuredUpdates::measure(const ParamGroup& group, const OfGroup& of, int round, const Sums& sums,
                              const MeasuredOf& known, const UpdateStep& step, Stream& home) const {
  const std::vector<Alike>& all = of.rounds[static_cast<std::size_t>(round)];
  const bool counts = of.sharing == nullptr || group.owner;  // else another rank owns the same range
  for (std::size_t i = 0; i < of.all.size(); ++i) {
    const Measuring& one = of.all[i];
    const UpdateStep step_of_it = step_of(step, group.params[one.param], one.treatment);
    std::vector<std::size_t> asked;
    for (std::size_t m = 0; m < one.treatment.measures.size(); ++m) {
      if (one.treatment.measures[m].round == round) {
        asked.push_back(m);
      }
    }
    if (asked.empty()) {
      continue;
    }
    std::vector<Measured> to(one.treatment.measures.size());
    for (std::size_t a = 0; a < all.size(); ++a) {
      for (const Segment& segment : all[a].segments) {
        if (segment.measuring == i) {
          number_of(to[segment.measure], segment.over) = sums[a].slice(segment.begin, {segment.count});
        }
      }
    }
    each_rectangle(group, one.param, one.treatment, known[i], plan_.settings(), home,
                   [&](WideElements& wide, const UpdateSlice& slice, const Rectangle& at) {
                     std::vector<Tensor> out;
                     for (std::size_t k = 0; k < asked.size(); ++k) {
                       out.push_back(on(home, stream_, DType::f32, at.rows * at.columns).view({at.rows, at.columns}));
                     }
                     optimizer_.measure(out, slice, step_of_it, round, home);
                     wide.narrow_states(step.step);
                     for (std::size_t k = 0; k < asked.size() && counts; ++k) {
                       const Measured& numbers = to[asked[k]];
                       home.reduce_matrix(at.of_rows(numbers.rows), at.of_columns(numbers.columns), numbers.parameter,
                                          out[k], one.treatment.measures[asked[k]].how);
                     }
                   });
  }
}

// Collectives are the main stream's.
void MeasuredUpdates::sum_over_ranks(const OfGroup& of, const Alike& alike, const Tensor& numbers, Stream& home) const {
  struct Block {
    Group* ranks;
    std::int64_t begin, count;
  };
  std::vector<Block> blocks;
  for (const Segment& segment : alike.segments) {
    Group* const ranks = of.all[segment.measuring].of(segment.over).ranks;
    if (ranks == nullptr) {
      continue;
    }
    if (!blocks.empty() && blocks.back().ranks == ranks && blocks.back().begin + blocks.back().count == segment.begin) {
      blocks.back().count += segment.count;
    } else {
      blocks.push_back({ranks, segment.begin, segment.count});
    }
  }
  if (of.sharing == nullptr && blocks.empty()) {
    return;
  }
  Tensor travelling = numbers;
  const bool elsewhere = &home != &stream_;
  if (elsewhere) {
    travelling = plan_.device().empty(DType::f64, numbers.shape());
    stream_.wait(home.record());
    stream_.upload(travelling, numbers);
  }
  if (of.sharing != nullptr) {
    of.sharing->all_reduce(travelling, alike.how, stream_);
  }
  for (const Segment& segment : alike.segments) {
    if (alike.how == ReduceOp::sum && !of.all[segment.measuring].of(segment.over).counts) {
      stream_.fill(travelling.slice(segment.begin, {segment.count}), 0);
    }
  }
  for (const Block& block : blocks) {
    block.ranks->all_reduce(travelling.slice(block.begin, {block.count}), alike.how, stream_);
  }
  if (elsewhere) {
    stream_.download(numbers, travelling);
    home.wait(stream_.record());
  }
}

void MeasuredUpdates::fold(const ParamGroup& group, const OfGroup& of, int round, const MeasuredOf& known,
                           const UpdateStep& step, Stream& home) const {
  for (std::size_t i = 0; i < of.all.size(); ++i) {
    const Measuring& one = of.all[i];
    if (round >= rounds_of(one.treatment)) {
      continue;
    }
    UpdateSlice slice{.master = {}, .weight = {}, .grad = {}, .state = {}, .whole = {}, .measured = known[i]};
    for (const OptimizerState& state : own_states(one.treatment)) {
      slice.state.push_back(state.over == StateOver::elements ? Tensor() : numbers_of(group, state, one.param));
    }
    optimizer_.fold(slice, step_of(step, group.params[one.param], one.treatment), round, home);
  }
}

void MeasuredUpdates::update(const ParamGroup& group, const UpdateStep& step, Stream& home) const {
  const auto found = groups_.find(group.id);
  if (found == groups_.end()) {
    return;
  }
  const OfGroup& of = found->second;
  MeasuredOf known;
  for (const Measuring& one : of.all) {
    known.emplace_back(one.treatment.measures.size());
  }
  for (std::size_t round = 0; round < of.rounds.size(); ++round) {
    const std::vector<Alike>& all = of.rounds[round];
    Sums sums;
    for (const Alike& alike : all) {
      sums.push_back(on(home, stream_, DType::f64, alike.numbers));
      home.fill(sums.back(), alike.how == ReduceOp::sum ? 0 : -std::numeric_limits<double>::infinity());
    }
    measure(group, of, static_cast<int>(round), sums, known, step, home);
    for (std::size_t a = 0; a < all.size(); ++a) {
      sum_over_ranks(of, all[a], sums[a], home);
      const Tensor numbers = on(home, stream_, DType::f32, all[a].numbers);
      home.cast(numbers, sums[a]);
      for (const Segment& segment : all[a].segments) {
        number_of(known[segment.measuring][segment.measure], segment.over) =
            numbers.slice(segment.begin, {segment.count});
      }
    }
    fold(group, of, static_cast<int>(round), known, step, home);
  }
  for (std::size_t i = 0; i < of.all.size(); ++i) {
    const Measuring& one = of.all[i];
    const UpdateStep step_of_it = step_of(step, group.params[one.param], one.treatment);
    each_rectangle(group, one.param, one.treatment, known[i], plan_.settings(), home,
                   [&](WideElements& wide, const UpdateSlice& slice, const Rectangle&) {
                     optimizer_.update(slice, step_of_it, home);
                     wide.narrow(step.step);
                   });
  }
}

}  // namespace orthant
