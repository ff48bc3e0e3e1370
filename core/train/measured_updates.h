// Updates by an optimizer that measures parameters (Treatment::measures): sums, or the largest, over rows, over columns
// and over whole parameters, whatever holds their elements: ranks that own ranges of one slice (ZeRO), and ranks that
// hold slices of one matrix (tensor parallelism).
//
// A group's parameters are measured together. What travels in a round, in f64, is a number for each row and column of
// this rank's slices, not their elements: first among the ranks that share the slices out, then among those that hold
// other slices.
#pragma once

#include <orthant/optimizer.h>
#include <orthant/param_group.h>
#include <orthant/plan.h>

#include <cstdint>
#include <map>
#include <vector>

#include "core/layers/owned_pieces.h"
#include "core/layers/parameter_store.h"

namespace orthant {

class MeasuredUpdates {
 public:
  // Makes groups of ranks: collective over the world.
  MeasuredUpdates(Plan& plan, ParamStore& store, Stream& stream);

  // Of all parameters of the group that are measured; the others are left alone. home: the stream on which the group's
  // state lives. Collective over the ranks that hold parts of the group.
  void update(const ParamGroup& group, const UpdateStep& step, Stream& home) const;

 private:
  // Who has other parts of a number. ranks null: nobody. Neighbours may hold the same part (ParamSpec::repeats): one of
  // them counts.
  struct Across {
    Group* ranks = nullptr;
    bool counts = true;
  };
  struct Measuring {
    std::size_t param = 0;  // in ParamGroup::params
    Treatment treatment;
    Across rows, columns, parameter;
    const Across& of(StateOver over) const {
      return over == StateOver::rows ? rows : over == StateOver::columns ? columns : parameter;
    }
  };
  // Where the numbers of one measure lie among those of a round that are made alike.
  struct Segment {
    std::size_t measuring = 0, measure = 0;  // in OfGroup::all, in Treatment::measures
    StateOver over = StateOver::rows;
    std::int64_t begin = 0, count = 0;
  };
  struct Alike {
    ReduceOp how = ReduceOp::sum;
    std::vector<Segment> segments;  // those of the same ranks follow one another
    std::int64_t numbers = 0;
  };
  struct OfGroup {
    std::vector<Measuring> all;
    Group* sharing = nullptr;  // null: this rank owns all of its slices
    std::vector<std::vector<Alike>> rounds;
  };
  // The numbers of a round's measures, f64, as `Alike` lays them out.
  using Sums = std::vector<Tensor>;
  using MeasuredOf = std::vector<std::vector<Measured>>;  // as OfGroup::all, and its measures

  Across across(const Param& p, const std::vector<AxisId>& axes, bool rows, bool columns) const;
  Measuring measuring(const ParamGroup& group, std::size_t param, Treatment treatment) const;
  void lay_out(const ParamGroup& group, OfGroup& of) const;
  void agree_on_sharing(Stream& stream);

  UpdateStep step_of(const UpdateStep& step, const Param& p, const Treatment& treatment) const;
  void measure(const ParamGroup& group, const OfGroup& of, int round, const Sums& sums, const MeasuredOf& known,
               const UpdateStep& step, Stream& home) const;
  void sum_over_ranks(const OfGroup& of, const Alike& alike, const Tensor& numbers, Stream& home) const;
  void fold(const ParamGroup& group, const OfGroup& of, int round, const MeasuredOf& known, const UpdateStep& step,
            Stream& home) const;

  Plan& plan_;
  ParamStore& store_;
  Stream& stream_;
  const Optimizer& optimizer_;
  std::map<int, OfGroup> groups_;  // by ParamGroup::id
};

}  // namespace orthant
