// NcclApi: what this communicator needs of NCCL. The library itself is behind nccl_library.cpp; tests drive everything
// else with another one, on host memory.
//
// Tensors are moved in the order of the given stream, and the host does not wait for them. No call waits for another
// rank: where NCCL is not done at once, ready() is false until it is, and the connection takes no other call.
// Thread safety: any call from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <orthant/group.h>
#include <orthant/tensor.h>

namespace orthant::nccl {

// Names one connection of some ranks. Made by one of them, given to the others by other means.
using ConnectionId = std::array<char, 128>;

// One rank's end of a connection. Errors of all calls: Error with NCCL's words; after abort, Error too.
class NcclConnection {
 public:
  virtual ~NcclConnection() = default;  // as abort, where close() has not ended it

  // False while NCCL still works on something that was asked of this end. Errors: Error, those that NCCL met on its own
  // (a network that failed) too.
  virtual bool ready() = 0;

  // NCCL connects its ranks at the first call that needs it, and then a host waits for the others' calls. Makes such a
  // first call, of a few bytes on a stream of its own, so that no later one waits: collectives of small tensors and
  // broadcasts among all, or messages from rank 0 to rank 1 of two. REQUIRES: ready(), nothing asked before; all ranks
  // do this. Done when ready().
  enum class Carries { collectives, messages };
  virtual void warm_up(Carries what) = 0;

  // In place.
  virtual void all_reduce(const Tensor& t, ReduceOp op, Stream& s) = 0;
  virtual void all_gather(const Tensor& out, const Tensor& in, Stream& s) = 0;
  virtual void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) = 0;
  virtual void broadcast(const Tensor& t, int root, Stream& s) = 0;
  virtual void reduce(const Tensor& t, ReduceOp op, int root, Stream& s) = 0;
  // All at once: none waits for an earlier one of the list. REQUIRES: those that are sent are parts of one tensor,
  // those that are received of one other.
  struct Transfer {
    enum { send, receive } way;
    Tensor tensor;  // not empty
    int peer;       // not this rank
  };
  virtual void transfer(std::span<const Transfer> transfers, Stream& s) = 0;

  // Begins the end; done when ready(). REQUIRES: everything asked before is complete, on all ranks in the end.
  virtual void close() = 0;
  // Ends it here and now, whatever runs; streams that wait in it go on, with tensors of any content.
  virtual void abort() noexcept = 0;
};

class NcclApi {
 public:
  virtual ~NcclApi() = default;
  // The calling thread's GPU, by a name that no other GPU of any machine has; later calls use this one.
  virtual std::string use_gpu() = 0;
  virtual ConnectionId new_id() = 0;
  // This rank's end of connection `id`, of `size` ranks; usable when ready().
  virtual std::unique_ptr<NcclConnection> connect(const ConnectionId& id, int size, int rank) = 0;
  // NcclConnection::abort of all connections at once. One after the other would not do: to end one, NCCL frees memory,
  // and CUDA then waits for the kernels of the others.
  virtual void abort_all() noexcept = 0;
};

}  // namespace orthant::nccl
