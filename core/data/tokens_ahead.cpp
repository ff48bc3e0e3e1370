#include "core/data/tokens_ahead.h"

namespace orthant {

HostBatch tokens_ahead(const HostBatch& batch, std::int64_t places) {
  HostBatch further = batch;
  for (std::int64_t s = 0; s < batch.sequences; ++s) {
    const std::int64_t begin = s * batch.positions, end = begin + batch.positions;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto in_document = [&](std::int64_t at) {
        return at < end && batch.valid[at] != 0 && batch.first[at] == batch.first[i];
      };
      const std::int64_t at = i + places;
      further.label[i] = batch.valid[i] != 0 && in_document(at) ? batch.label[at] : -1;
      further.token[i] = 0;
      if (batch.valid[i] != 0 && in_document(at)) {
        further.token[i] = batch.token[at];
      } else if (batch.valid[i] != 0 && in_document(at - 1) && batch.label[at - 1] >= 0) {
        further.token[i] = batch.label[at - 1];
      }
    }
  }
  return further;
}

}  // namespace orthant
