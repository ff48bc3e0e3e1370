#include "lanes.h"

#include <algorithm>
#include <utility>

namespace orthant::offload {

void ScratchSpace::reserve(std::int64_t bytes) {
  ScratchFileOptions options;
  options.directory = directory_;
  options.bytes = aligned_up(bytes);
  options.rank = rank_;
  parts_.push_back({makes_files_ ? std::make_unique<ScratchFile>(options) : nullptr, options.bytes, 0});
  bytes_ += options.bytes;
}

ScratchSpace::Range ScratchSpace::take(std::int64_t bytes) {
  constexpr std::int64_t least = std::int64_t{16} << 20;
  const std::int64_t padded = aligned_up(bytes);
  if (const auto again = free_.find(padded); again != free_.end()) {
    return free_.extract(again).mapped();
  }
  const auto fits = [&](const Part& part) { return part.used + padded <= part.bytes; };
  auto part = std::find_if(parts_.begin(), parts_.end(), fits);
  if (part == parts_.end()) {
    try {
      reserve(std::max({padded, least, bytes_ / 4}));
    } catch (const SettingError& refusal) {  // no mistake in the configuration: the disk has filled up meanwhile
      throw Error(refusal.what());
    }
    part = std::prev(parts_.end());
  }
  const Range range{part->file.get(), part->used, padded, nullptr};
  part->used += padded;
  return range;
}

void ScratchSpace::give_back(Range range) {
  free_.emplace(range.bytes, std::move(range));
}

Lanes::Lanes(Device& of, std::string directory, int rank)
    : device(of),
      space(std::move(directory), rank, of.holds_data()),
      down(of.make_side_stream()),
      up(of.make_side_stream()),
      host(of.make_host_stream()),
      writes(of.make_host_stream()),
      reads(of.make_host_stream()) {}

namespace {

void begin(std::deque<std::shared_ptr<Event>>& on_their_way, std::shared_ptr<Event> one) {
  constexpr std::size_t most = 4;  // tensors: the states and the gradient of one group
  on_their_way.push_back(std::move(one));
  while (on_their_way.size() > most) {
    on_their_way.front()->wait();
    on_their_way.pop_front();
  }
}

}  // namespace

void Lanes::began_to_read(std::shared_ptr<Event> there) {
  begin(reading, std::move(there));
}

void Lanes::began_to_write(std::shared_ptr<Event> written) {
  begin(writing, std::move(written));
}

}  // namespace orthant::offload
