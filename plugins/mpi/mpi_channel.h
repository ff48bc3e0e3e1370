// MpiChannel: the collectives of one group over an MPI communicator, on host memory.
//
// Sums are ordered as the contract asks, whatever MPI's own algorithms do: contributions travel (all-gather or
// all-to-all of ranges), and are added here in rank order. Every call is nonblocking in MPI and polled against the
// timeout, so that no call of one channel keeps MPI from another's: streams may use their channels at once. Before the
// data, members exchange what they are about to call, each with each, which finds different calls and tells who has not
// arrived; it costs 2 (p - 1) small messages per call and member.
#pragma once

#include <mpi.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <orthant/host_channel.h>

#include "mpi_world.h"

namespace orthant {

class MpiChannel final : public HostChannel {
 public:
  // Takes over `comm`, whose ranks are those of the group. members: world ranks.
  MpiChannel(std::shared_ptr<MpiWorld> world, MPI_Comm comm, std::string name, std::vector<int> members,
             double timeout_seconds);
  ~MpiChannel() override;

  // On the channel of the whole world: waits until every rank is about to split `group`, and fails where one is about
  // to split another. MPI_Comm_split itself would wait for ever, or mix them up.
  void agree_on_split(const std::string& group);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  void all_reduce(void* data, std::int64_t n, DType dtype, ReduceOp op) override;
  void all_gather(void* out, const void* in, std::int64_t n, DType dtype) override;
  void reduce_scatter(void* out, const void* in, std::int64_t n, DType dtype, ReduceOp op) override;
  void all_to_all(void* out, std::span<const std::int64_t> recv, const void* in, std::span<const std::int64_t> send,
                  DType dtype) override;
  void broadcast(void* data, std::int64_t n, DType dtype, int root) override;
  void reduce(void* data, std::int64_t n, DType dtype, ReduceOp op, int root) override;
  void gather(void* out, const void* in, std::int64_t n, DType dtype, int root) override;
  void scatter(void* out, const void* in, std::int64_t n, DType dtype, int root) override;
  void send(const void* data, std::int64_t n, DType dtype, int to) override;
  void recv(void* data, std::int64_t n, DType dtype, int from) override;
  void barrier() override;

 private:
  // A call as its members compare it.
  struct Call {
    const char* name;
    std::int64_t kind, sequence, bytes, dtype, op, root;
  };
  Call begin(const char* name, std::int64_t kind, std::int64_t bytes, DType dtype, ReduceOp op = ReduceOp::sum,
             int root = -1);
  void compare(const Call& call);
  // Polls until all of `requests` are done. peers[i]: group rank that request i depends on, or none where empty.
  void wait(const Call& call, std::vector<MPI_Request>& requests, const std::vector<int>& peers = {});
  void wait(const Call& call, MPI_Request request);
  // start(block, &request): begins an MPI call that moves blocks of the call's bytes, and returns its status. Returns
  // when it is done; begins nothing where the blocks are empty.
  template <class F>
  void move_blocks(const Call& call, const char* function, const F& start);
  std::string describe(const Call& call) const;
  bool somebody_is_busy() const;
  std::string blame(const Call& call, const std::set<int>& missing) const;  // missing: world ranks
  [[noreturn]] void fail_here(const std::string& why);

  std::shared_ptr<MpiWorld> world_;
  MPI_Comm comm_;
  std::string name_;
  std::vector<int> members_;
  int rank_ = 0;
  double timeout_seconds_;
  std::int64_t sequence_ = 0;
  std::string splitting_;                      // the name of the group that is being split, on the world's channel
  std::vector<std::int64_t> sent_, received_;  // messages per peer
};

}  // namespace orthant
