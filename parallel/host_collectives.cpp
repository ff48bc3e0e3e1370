#include "parallel/host_collectives.h"

#include <algorithm>

namespace orthant {

namespace {

// Of one rank, in one piece.
std::int64_t most_of_a_text(std::int64_t ranks) {
  return std::max<std::int64_t>(64, (std::int64_t{1} << 14) / ranks);
}

}  // namespace

std::int64_t bytes_to_gather_texts(std::int64_t ranks) {
  return ranks == 1 ? 0 : (ranks + 1) * most_of_a_text(ranks);
}

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
  // Piece by piece: what many ranks say of many parameters is more than memory.limit may leave.
  const std::int64_t piece = std::min(longest, most_of_a_text(ranks));
  const Tensor in = device.empty(DType::u8, {piece}), out = device.empty(DType::u8, {ranks, piece});
  std::string all(static_cast<std::size_t>(ranks * piece), '\0');
  for (std::int64_t begin = 0; begin < longest; begin += piece) {
    std::string own = begin < static_cast<std::int64_t>(mine.size()) ? mine.substr(begin, piece) : "";
    own.resize(static_cast<std::size_t>(piece));
    stream.upload(in, own.data());
    group.all_gather(out, in, stream);
    stream.download(all.data(), out);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t left = std::clamp<std::int64_t>(lengths[r] - begin, 0, piece);
      texts[r].append(all, static_cast<std::size_t>(r * piece), static_cast<std::size_t>(left));
    }
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
