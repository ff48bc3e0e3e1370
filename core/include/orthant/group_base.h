// GroupBase: what Groups of every transport share. It has name and members, checks arguments before anything moves, and
// does the calls of a group of one. Authors of communicators whose transport works on tensors implement the do_ calls.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <orthant/abi/communicators.h>
#include <orthant/group.h>
#include <orthant/tensor.h>

namespace orthant {

// Errors: Error naming the call, the group and both shapes, for arguments that do not fit; and those of the transport.
class GroupBase : public Group {
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
  GroupBase(std::string name, int rank, std::vector<int> members)
      : name_(std::move(name)), rank_(rank), members_(std::move(members)) {}

  // The counts of an all_to_all, in elements: one entry for each member.
  struct Exchange {
    std::vector<std::int64_t> recv, send;
  };

  // The calls of Group of these names, in a group of two members or more, with arguments that fit.
  virtual void do_all_reduce(const Tensor& t, ReduceOp op, Stream& s) = 0;
  virtual void do_all_gather(const Tensor& out, const Tensor& in, Stream& s) = 0;
  virtual void do_reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) = 0;
  virtual void do_all_to_all(const Tensor& out, const Tensor& in, const Exchange& counts, Stream& s) = 0;
  virtual void do_broadcast(const Tensor& t, int root, Stream& s) = 0;
  virtual void do_reduce(const Tensor& t, ReduceOp op, int root, Stream& s) = 0;
  virtual void do_gather(const Tensor& out, const Tensor& in, int root, Stream& s) = 0;
  virtual void do_scatter(const Tensor& out, const Tensor& in, int root, Stream& s) = 0;
  virtual void do_send(const Tensor& t, int to, Stream& s) = 0;
  virtual void do_recv(const Tensor& t, int from, Stream& s) = 0;
  virtual void do_barrier(Stream& s) = 0;

 private:
  void check(const Tensor& t, const char* call) const;
  void check_reducible(const Tensor& t, const char* call) const;
  void check_member(int rank, const char* call, const char* role) const;
  void check_peer(int peer, const char* call) const;
  // `whole` has size() times the elements of `block`.
  void check_blocks(const Tensor& whole, const Tensor& block, const char* call, const char* whole_name,
                    const char* block_name) const;
  Exchange check_exchange(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                          std::span<const std::int64_t> send_rows) const;

  std::string name_;
  int rank_;
  std::vector<int> members_;
};

}  // namespace orthant
