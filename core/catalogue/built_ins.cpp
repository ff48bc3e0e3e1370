// The kinds that the core brings: each room adds its own by the call that a plugin uses.
#include <orthant/catalogue.h>

namespace orthant {

std::shared_ptr<Catalogue> built_in_catalogue() {
  return std::make_shared<Catalogue>();
}

}  // namespace orthant
