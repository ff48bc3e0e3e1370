#include "core/base/build.h"

#include "orthant_build.h"

namespace orthant {

const char* build_of_library() {
  return ORTHANT_TREE;
}

}  // namespace orthant
