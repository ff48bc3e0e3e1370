// BlendedSource: several sources, whose sequences take turns by weight.
#pragma once

#include <orthant/settings.h>
#include <orthant/source.h>

#include <memory>
#include <string>
#include <vector>

#include "core/data/blend_order.h"
#include "core/data/data_size.h"

namespace orthant {

// Training sequence i is the next one of the part whose turn it is (blend_order.h): a part's k-th is what it would be
// the k-th of in a run on that part alone, epoch by epoch. A part that ends begins again in another order, whether the
// others have ended or not. The held-out sequences are those of the parts, one part after another, each with its share
// of data.validation_sequences, and at least one.
class BlendedSource final : public SizedSequences {
 public:
  // Opens `source` for each file of data.path. may_write: by open, else by peek. Nothing where one of the parts is
  // nothing. Errors: ConfigError of a part, or for weights that are none.
  static std::unique_ptr<BlendedSource> open(const Source& source, const Settings& settings, bool may_write);

  std::string name() const override;
  std::int64_t vocabulary() const override;
  Sequence training(std::int64_t i) const override;
  std::int64_t validation_sequences() const override;
  Sequence validation(std::int64_t i) const override;
  // Of all parts together, whatever their weights.
  std::optional<DataSize> size() const override;
  // Those of the parts, and how often the run reads each.
  std::vector<std::string> notes() const override;

 private:
  BlendedSource(BlendOrder order, std::vector<std::unique_ptr<Sequences>> parts, const Settings& settings);

  BlendOrder order_;
  std::vector<std::unique_ptr<Sequences>> parts_;
  std::uint64_t seed_;
  std::int64_t run_sequences_;  // of all steps
};

}  // namespace orthant
