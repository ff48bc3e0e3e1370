// LocalChannel: the collectives of one group over a LocalSegment, on host memory.
//
// Every collective is a sequence of rounds; see area.h for the rule of a round. Bulk data is cut into chunks, and
// chunk i is written while chunk i - 1 is read, so a collective of C chunks costs about C waits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <orthant/host_channel.h>
#include <orthant/wait_time.h>

#include "parallel/local/area.h"
#include "parallel/local/segment.h"
#include "parallel/local/wait.h"

namespace orthant {

// The world has failed, and not by this rank: what others throw when one has.
class PeerError : public Error {
 public:
  using Error::Error;
};

class LocalChannel final : public HostChannel {
 public:
  // channel: the number of the split, the same on all ranks of the world. rank: of the caller, within members
  // (world ranks, two or more).
  LocalChannel(std::shared_ptr<LocalSegment> segment, int channel, std::string name, std::vector<int> members, int rank,
               double timeout_seconds);

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
  struct Member {
    AreaControl* control;
    std::byte* area;
  };
  struct Pair {
    Mailbox* box;
    std::byte* data;    // two chunks
    Patience patience;  // of the stream that sends here, or receives
    std::uint32_t chunks = 0;
    std::uint64_t messages = 0;
  };

  // --- rounds (channel.cpp)
  // Starts a collective: waits until the slots may be written, publishes the call for comparison.
  void open(Collective kind, DType dtype, std::uint64_t bytes, ReduceOp op = ReduceOp::sum, int root = -1,
            std::uint64_t rounds = 0);
  void arrive();                                    // at round_ + 1; what was written before is now visible
  void wait_for_all();                              // until all have arrived at round_; compares calls once
  void wait_for(int member);                        // until that one has; compares its call
  void compare(int member, const CallHeader& own);  // fails on a difference
  // For a waiter that slept: gives up when the world has failed, or when it has waited for too long. only_member: the
  // one that is waited for; -1: all.
  void check_waiting(WaitTime& waited, int only_member);
  // The same for a wait for `missing` (bit r: world rank r). too_late: what to say of it, before whose fault it is.
  void check_time(WaitTime& waited, std::uint64_t missing, const std::function<std::string()>& too_late);
  bool has_arrived(int member) const;

  // Data slots of `member` for the round to be written now, and for the round last arrived at.
  std::byte* slot(int member, std::uint32_t round, std::size_t base) const;
  std::byte* stage_to_write() const { return slot(rank_, round_ + 1, layout_.stages); }
  std::byte* result_to_write() const { return slot(rank_, round_ + 1, layout_.results); }
  const std::byte* stage_of(int member) const { return slot(member, round_, layout_.stages); }
  const std::byte* result_of(int member) const { return slot(member, round_, layout_.results); }

  // write(i), then read(i) after all have written theirs, for `rounds` chunks; write(i + 1) overlaps read(i).
  template <class Write, class Read>
  void pipeline(std::int64_t rounds, Write write, Read read);
  void all_reduce_large(std::byte* data, std::int64_t n, DType dtype, ReduceOp op);

  // --- large data without slots: each member reads the memory of the others (direct.cpp)
  // Whether this channel's members all can: processes of their own on a system that allows it. Asked in a call that all
  // make, after open(); the first time all try it, which takes two rounds.
  bool reads_directly();
  void offer(const void* data);  // to the readers of this call; before arrive()
  // n bytes at `offset` of what the member has offered. Once all have arrived, and before any returns from the call.
  // False where the system does not give them.
  bool read_from(int member, void* to, std::uint64_t offset, std::uint64_t n);
  // Once this member has read, `read` or not: the offered memory is the caller's again. Whether all have: else the call
  // and all later ones take slots.
  bool settle(bool read);
  bool all_gather_directly(std::byte* out, const std::byte* in, std::uint64_t bytes);  // as settle()
  [[noreturn]] void lost_member(int member, int error);

  // --- counting (see traffic.h)
  void count_call(const CallHeader& call);
  void count_moved(Collective kind, std::uint64_t bytes);
  TrafficCounter& counter(Collective kind) const {
    return areas_[rank_].control->traffic[static_cast<std::size_t>(kind)];
  }
  // Copies from another member's area.
  void take(void* to, const std::byte* from, std::uint64_t bytes);
  // Reduces what all members have at `offset` of their stages; `own`: instead of this member's stage, where given.
  void reduce_stages(void* out, std::int64_t offset, std::int64_t n, DType dtype, ReduceOp op,
                     const void* own = nullptr);

  // --- pairs (mailbox.cpp)
  template <class Ready>
  void wait_for_pair(Pair& pair, SharedWord& word, Ready ready, const CallHeader& call, int peer);

  // --- words
  [[noreturn]] void give_up(const CallHeader& call);                        // the world has failed
  [[noreturn]] void fail_world(int rank_at_fault, const std::string& why);  // by this rank's finding
  [[noreturn]] void fail_other_group(int member);                           // its splits were not this rank's
  std::string describe(const CallHeader& call) const;                       // all_reduce #7 (16 MiB) of group 'data'

  std::shared_ptr<LocalSegment> segment_;
  AreaLayout layout_;
  std::string name_;
  std::vector<int> members_;
  int rank_;
  double timeout_seconds_;
  Patience patience_;  // of the stream of collectives
  std::uint64_t group_hash_;
  std::vector<Member> areas_;
  std::vector<Pair> outgoing_, incoming_;

  std::optional<bool> reads_directly_;  // once tried
  std::uint64_t probe_ = 0;

  CallHeader call_;              // the current or last collective
  bool compared_ = true;         // with the calls of all members
  std::uint32_t round_ = 0;      // this member has arrived at it
  std::uint32_t all_round_ = 0;  // all members are known to have
};

}  // namespace orthant
