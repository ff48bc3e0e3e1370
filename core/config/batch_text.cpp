#include "core/config/batch_text.h"

#include <fmt/format.h>

namespace orthant {

std::string batch_text(const BatchSettings& batch) {
  std::string text = fmt::format("{} sequence{} a step", batch.sequences, batch.sequences == 1 ? "" : "s");
  for (std::size_t i = 0; i < batch.grow_to.size(); ++i) {
    text += fmt::format(", {} after {}{}", batch.grow_to[i], batch.grow_after.at(i),
                        i > 0                      ? ""
                        : batch.grow_after[i] == 1 ? " step"
                                                   : " steps");
  }
  return text;
}

}  // namespace orthant
