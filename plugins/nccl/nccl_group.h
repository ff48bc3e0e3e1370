// NcclGroup: the collectives of one group over NCCL.
//
// Collectives go over one connection of all members. Messages from one member to another go over a connection of these
// two and this way alone: NCCL runs what is asked of a connection in one order, so that a send and a receive on one
// connection would wait for each other, which group.h forbids.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <orthant/group_base.h>

#include "world.h"

namespace orthant::nccl {

class NcclGroup final : public GroupBase {
 public:
  // number: of the split, the same on all members. connection: null in a group of one.
  NcclGroup(std::shared_ptr<World> world, std::shared_ptr<NcclConnection> connection, int number, std::string name,
            int rank, std::vector<int> members);
  ~NcclGroup() override;

 private:
  using Transfer = NcclConnection::Transfer;
  enum class RootDoes { send, receive };

  void do_all_reduce(const Tensor& t, ReduceOp op, Stream& s) override;
  void do_all_gather(const Tensor& out, const Tensor& in, Stream& s) override;
  void do_reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) override;
  void do_all_to_all(const Tensor& out, const Tensor& in, const Exchange& counts, Stream& s) override;
  void do_broadcast(const Tensor& t, int root, Stream& s) override;
  void do_reduce(const Tensor& t, ReduceOp op, int root, Stream& s) override;
  void do_gather(const Tensor& out, const Tensor& in, int root, Stream& s) override;
  void do_scatter(const Tensor& out, const Tensor& in, int root, Stream& s) override;
  void do_send(const Tensor& t, int to, Stream& s) override;
  void do_recv(const Tensor& t, int from, Stream& s) override;
  void do_barrier(Stream& s) override;

  // what: the arguments that all members share. give: null where nothing moves.
  void collective(const char* name, const std::string& what, std::int64_t bytes, Stream& s, const World::Give& give);
  // One whose members' tensors are as large as `t`; rest: the other arguments that they share.
  void collective_of(const char* name, const Tensor& t, const std::string& rest, Stream& s, const World::Give& give);
  // gather, scatter: what this rank moves between the root, which has a block of each member in `whole`, and the
  // others.
  std::vector<Transfer> transfers_with_root(RootDoes does, const Tensor& whole, const Tensor& block, int root,
                                            Stream& s) const;
  void message(const Tensor& t, int from, int to, Stream& s);

  std::shared_ptr<World> world_;
  std::shared_ptr<NcclConnection> connection_;
  std::shared_ptr<const Line> line_;
  std::map<std::pair<int, int>, std::shared_ptr<const Line>> message_lines_;  // by group ranks (from, to)
  std::mutex message_mutex_;
  Tensor token_;  // of barrier, i32 [1]
};

}  // namespace orthant::nccl
