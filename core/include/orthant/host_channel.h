// HostChannel: collectives among the members of one group on host memory. Authors of communicators whose transport
// works on host addresses implement a HostChannel and wrap it with make_host_group.
//
// A channel knows nothing of tensors or streams. All calls are blocking. Sizes are in elements of `dtype`. Every member
// calls the same operations in the same order, with the same sizes unless counts for each member are arguments.
// Reductions run in group-rank order (reduce_in_rank_order below).
//
// Errors and thread safety: as in group.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <orthant/abi/communicators.h>
#include <orthant/group.h>
#include <orthant/tensor.h>

namespace orthant {

class HostChannel {
 public:
  virtual ~HostChannel() = default;
  virtual int rank() const = 0;  // of the caller, within the group
  virtual int size() const = 0;

  virtual void all_reduce(void* data, std::int64_t n, DType dtype, ReduceOp op) = 0;
  // out: size() blocks of n elements; in: n elements, which may be block rank() of out.
  virtual void all_gather(void* out, const void* in, std::int64_t n, DType dtype) = 0;
  // in: size() blocks of n elements; out: n elements, which may be block rank() of in.
  virtual void reduce_scatter(void* out, const void* in, std::int64_t n, DType dtype, ReduceOp op) = 0;
  // Contiguous runs of elements, in rank order on both sides; counts have size() entries. No overlap of out and in.
  virtual void all_to_all(void* out, std::span<const std::int64_t> recv, const void* in,
                          std::span<const std::int64_t> send, DType dtype) = 0;
  virtual void broadcast(void* data, std::int64_t n, DType dtype, int root) = 0;
  virtual void reduce(void* data, std::int64_t n, DType dtype, ReduceOp op, int root) = 0;
  // out (root only): size() blocks of n elements.
  virtual void gather(void* out, const void* in, std::int64_t n, DType dtype, int root) = 0;
  // in (root only): size() blocks of n elements.
  virtual void scatter(void* out, const void* in, std::int64_t n, DType dtype, int root) = 0;
  virtual void send(const void* data, std::int64_t n, DType dtype, int to) = 0;
  virtual void recv(void* data, std::int64_t n, DType dtype, int from) = 0;
  virtual void barrier() = 0;
};

// Makes a Group over `channel`. It checks shapes, and runs each call in the stream's order (Stream::host) on host views
// of the tensors. A group of one member never touches the channel, which may then be null. `members`: world ranks.
std::unique_ptr<Group> make_host_group(std::string name, int rank, std::vector<int> members,
                                       std::shared_ptr<HostChannel> channel);

// out[i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ..., for i in [0, n). bf16 is accumulated in fp32
// and rounded once; integer sums wrap; max and min propagate NaN. `out` may be one of the sources (the same
// address); other overlap is not allowed. REQUIRES: at least one source; is_summable(dtype).
void reduce_in_rank_order(void* out, std::span<const void* const> sources, std::int64_t n, DType dtype, ReduceOp op);

}  // namespace orthant
