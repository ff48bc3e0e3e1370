// ParamStore: the parameter groups that this rank holds, with their buffers.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <orthant/ops.h>
#include <orthant/param.h>
#include <orthant/plan.h>

namespace orthant {

class ParamStore {
 public:
  // Places every parameter by the plan, makes the groups' sum groups (collective over the world), allocates weights,
  // gradients and optimizer state, and initialises the weights: each element a function of seed, name and global
  // index. REQUIRES: the plan is frozen.
  ParamStore(Plan& plan, Stream& stream);
  // Of a dry run: which slices this rank would hold, without buffers.
  explicit ParamStore(Plan& plan);

  std::vector<std::unique_ptr<ParamGroup>>& groups() { return groups_; }
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const { return groups_; }

  // Errors: Error where this rank does not hold it.
  ParamGroup& group(const std::string& name) const;
  struct Found {
    ParamGroup* group;
    const Param* param;
  };
  // group is null where this rank does not hold it.
  Found find(const std::string& name) const;

  // Copies master weights into compute weights (after they were loaded from outside).
  void refresh_weights(Stream& stream);
  std::int64_t elements() const;  // held by this rank

 private:
  void allocate(ParamGroup& group, const Plan& plan, Stream& stream);
  std::vector<std::unique_ptr<ParamGroup>> groups_;
};

// A 32-bit hash of a parameter's name: the random numbers' site.
std::uint32_t site_of(const std::string& name);

}  // namespace orthant
