#include "parallel/host_collectives.h"

#include <algorithm>

namespace orthant {

std::vector<std::string> gather_texts(const std::string& mine, Group& group, Stream& stream) {
  if (group.size() == 1) {
    return {mine};
  }
  Device& device = stream.device();
  const std::int64_t ranks = group.size();
  std::vector<std::int64_t> lengths(ranks, 0);
  lengths[group.rank()] = static_cast<std::int64_t>(mine.size());
  all_reduce_values(lengths, ReduceOp::sum, group, stream);
  require_all_alive(group, stream);  // before memory is asked for
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(ranks);
  if (longest == 0) {
    return texts;
  }
  std::string padded = mine;
  padded.resize(longest);
  Tensor in = device.empty(DType::u8, {longest}), out = device.empty(DType::u8, {ranks, longest});
  stream.upload(in, padded.data());
  group.all_gather(out, in, stream);
  std::string all(ranks * longest, '\0');
  stream.download(all.data(), out);
  for (std::int64_t r = 0; r < ranks; ++r) {
    texts[r] = all.substr(static_cast<std::size_t>(r * longest), static_cast<std::size_t>(lengths[r]));
  }
  return texts;
}

void all_reduce_values(std::vector<std::int64_t>& values, ReduceOp op, Group& group, Stream& stream) {
  if (group.size() == 1 || values.empty()) {
    return;
  }
  Tensor t = stream.device().empty(DType::i64, {static_cast<std::int64_t>(values.size())});
  stream.upload(t, values.data());
  group.all_reduce(t, op, stream);
  stream.download(values.data(), t);
}

void require_all_alive(Group& group, Stream& stream) {
  if (group.size() > 1) {
    group.barrier(stream);
    stream.synchronize();
  }
}

}  // namespace orthant
