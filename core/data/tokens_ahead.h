// What lies some places further on than each position of a batch: what multi-token prediction is asked for.
#pragma once

#include "core/data/batch.h"

namespace orthant {

// `batch` with other tokens and labels. Position i has those of position i + places of its document. Behind the last of
// these it has no label (-1), and as its token the label of the place before, where that is one: it is the token that
// the sequence was cut off at. Else token 0, of which nothing that counts depends: later tokens of the document alone
// could see it.
HostBatch tokens_ahead(const HostBatch& batch, std::int64_t places);

}  // namespace orthant
