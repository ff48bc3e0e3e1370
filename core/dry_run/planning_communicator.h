// A communicator without peers: groups of any size, for one rank, whose collectives are written down and move nothing.
// A step of the real model runs on it, with the meta device (core/dry_run/), to tell what the step would send.
//
// What the host reads afterwards must still make sense, so tensors that hold data (holds_data) are filled as if every
// peer had the caller's own: an all-reduced count is size() times the own one, every peer sends what the caller would.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <orthant/group.h>

namespace orthant {

// One call of a collective by this rank.
struct CollectiveCall {
  std::size_t group = 0;       // index in CollectiveRecord::groups
  const char* operation = "";  // a name of name_of(Collective), one address each
  DType dtype = DType::u8;
  std::int64_t bytes_in = 0, bytes_out = 0;  // of the tensors that this rank reads and writes; in place: the same
  // That leave this rank, n members, by ring or direct algorithms: all_reduce 2 (n - 1) / n of the tensor; all_gather
  // and reduce_scatter (n - 1) / n of the whole; all_to_all and scatter what is for others; gather, and send, what is
  // sent; broadcast and reduce (n - 1) / n of the tensor, the mean over the members of a pipelined ring; barrier 0.
  std::int64_t bytes_sent = 0;
  std::int64_t times = 1;  // made with others of its kind for each of so many micro-batches that repeat (repetition.h)
  bool operator==(const CollectiveCall& other) const = default;
};

struct RecordedGroup {
  std::string name;
  std::vector<int> members;
  bool operator==(const RecordedGroup&) const = default;
};

// What the collectives of one rank were, in order, over all groups.
struct CollectiveRecord {
  std::vector<RecordedGroup> groups;  // in the order of their making
  std::vector<CollectiveCall> calls;
};

// `record` outlives the communicator and its groups. Thread safety: one rank, one thread.
std::unique_ptr<Communicator> make_planning_communicator(int rank, int world_size, CollectiveRecord& record);

}  // namespace orthant
