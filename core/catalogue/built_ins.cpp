// The kinds that the core brings: each room adds its own by the call that a plugin uses.
#include <orthant/catalogue.h>

#include "core/data/source.h"
#include "core/layers/parts.h"
#include "core/model/decoder.h"
#include "core/objectives/kinds.h"
#include "core/train/built_in_optimizers.h"
#include "router/gates.h"

namespace orthant {

std::shared_ptr<Catalogue> built_in_catalogue() {
  auto catalogue = std::make_shared<Catalogue>();
  add_gates(*catalogue);
  add_optimizers(*catalogue);
  add_learning_rates(*catalogue);
  add_sources(*catalogue);
  add_parts(*catalogue);
  add_model_kinds(*catalogue);
  add_objectives(*catalogue);
  return catalogue;
}

}  // namespace orthant
