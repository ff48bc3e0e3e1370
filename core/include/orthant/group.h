// Group: some ranks of the world that call collectives together. Communicator: how the ranks talk.
//
// Order of calls: every member calls the same collectives of a group in the same order, with the same sizes. A
// communicator checks what it can (name, sequence number, bytes). When calls differ it fails with both sides' view.
// Streams: calls are ordered on the given stream. They do not block the host if the stream is asynchronous.
// Sums run in group-rank order (0, 1, 2, ...): they are the same on every member and in every run. bf16 is summed in
// fp32 and rounded once. A transport may sum in an order of its own, as NCCL's rings do. Its communicator says so, and
// sums are then the same on every member, but not in rank order.
//
// Errors: Error naming the rank at fault, the collective, its sequence number and its bytes. A dead rank is named
// within a second, a stuck one within the configured timeout. Thread safety: one stream at a time for a Group's
// collectives, one for its sends to each peer, one for its receives from each peer; these may be different streams.
// Different groups may be used concurrently, and never wait for each other. A send may wait until its receiver calls
// recv. It returns when the tensor may be written again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <orthant/abi/tensors.h>
#include <orthant/tensor.h>

namespace orthant {

class Stream;
enum class ReduceOp { sum, max, min };

class Group {
 public:
  virtual ~Group() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;  // of the caller, within the group
  virtual int size() const = 0;
  virtual const std::vector<int>& members() const = 0;  // world ranks, in group order

  // Sums, or takes the greatest or least, in place. dtype: f32, bf16, f64, i32, i64.
  virtual void all_reduce(const Tensor& t, ReduceOp op, Stream& s) = 0;
  // `out` has size() times the elements of `in`; its block r comes from rank r. `in` may be block rank() of `out`.
  virtual void all_gather(const Tensor& out, const Tensor& in, Stream& s) = 0;
  // `in` has size() times the elements of `out`; block r of the sum goes to rank r. `out` may be block rank() of `in`.
  virtual void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) = 0;
  // Sends rows of `in` to the ranks in order, send_rows[r] of them to rank r. recv_rows[r] rows of `out` come from rank
  // r. A row is an entry of the outermost dimension. REQUIRES: rows of one size on both sides; counts agree pairwise.
  virtual void all_to_all(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                          std::span<const std::int64_t> send_rows, Stream& s) = 0;
  virtual void broadcast(const Tensor& t, int root, Stream& s) = 0;
  virtual void reduce(const Tensor& t, ReduceOp op, int root, Stream& s) = 0;  // result in t on root; t kept elsewhere
  virtual void gather(const Tensor& out, const Tensor& in, int root, Stream& s) = 0;   // out used on root only
  virtual void scatter(const Tensor& out, const Tensor& in, int root, Stream& s) = 0;  // in used on root only
  virtual void send(const Tensor& t, int to, Stream& s) = 0;  // matched with recv in order, per pair
  virtual void recv(const Tensor& t, int from, Stream& s) = 0;
  virtual void barrier(Stream& s) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string name() const = 0;  // "local", "mpi", "nccl"
  virtual int rank() const = 0;          // of the world
  virtual int size() const = 0;
  // Makes a group of `members` (world ranks, in group order). Collective over the world: every rank calls it in the
  // same order, with the list that it belongs to; the lists partition the world. Each call makes a new channel with its
  // own sequence numbers, even for ranks that already share one.
  virtual std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) = 0;
  // Tells every other rank to fail with `why` instead of waiting. Safe from any thread; first reason wins.
  virtual void abort(const std::string& why) noexcept = 0;
  // Gives a sign of life from a rank that is busy with something other than collectives, such as files. Ranks that wait
  // for it count their timeout from the last sign: call it more often than that. Safe from any thread.
  virtual void beat() noexcept {}
  // Tells the optimizer step that this rank is in, counted from 0, for messages and for whoever restarts the ranks.
  virtual void report_step(std::int64_t /*step*/) noexcept {}
};

}  // namespace orthant
