// A group whose collectives are values: one function sees them all, to refuse, count, record or pass them on.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <orthant/group.h>

#include "parallel/collective.h"

namespace orthant {

// The arguments of one call of Group. What it does not take is empty.
struct GroupCall {
  Collective collective;
  Tensor out, in;  // one tensor in place, or that is sent: both are it
  ReduceOp op = ReduceOp::sum;
  int peer = 0;  // root, receiver or sender
  std::span<const std::int64_t> recv_rows = {}, send_rows = {};
};

class InterceptedGroup : public Group {
 public:
  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

  void all_reduce(const Tensor& t, ReduceOp op, Stream& s) final;
  void all_gather(const Tensor& out, const Tensor& in, Stream& s) final;
  void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) final;
  void all_to_all(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                  std::span<const std::int64_t> send_rows, Stream& s) final;
  void broadcast(const Tensor& t, int root, Stream& s) final;
  void reduce(const Tensor& t, ReduceOp op, int root, Stream& s) final;
  void gather(const Tensor& out, const Tensor& in, int root, Stream& s) final;
  void scatter(const Tensor& out, const Tensor& in, int root, Stream& s) final;
  void send(const Tensor& t, int to, Stream& s) final;
  void recv(const Tensor& t, int from, Stream& s) final;
  void barrier(Stream& s) final;

 protected:
  // rank: of the caller among the members; their number where it is none of them.
  InterceptedGroup(std::string name, std::vector<int> members, int rank)
      : name_(std::move(name)), members_(std::move(members)), rank_(rank) {}

  virtual void call(const GroupCall& call, Stream& s) = 0;

 private:
  std::string name_;
  std::vector<int> members_;
  int rank_;
};

// The same call on another group.
void perform(const GroupCall& call, Group& group, Stream& s);

// The group of a dry run: it knows its members and refuses to communicate.
std::unique_ptr<Group> make_dry_group(std::string name, std::vector<int> members, int world_rank);

}  // namespace orthant
