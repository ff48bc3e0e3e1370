// Rounds, waits and checks. The collectives are in collectives.cpp, send and recv in mailbox.cpp.
#include "parallel/local/channel.h"

#include <orthant/hash.h>

#include <algorithm>
#include <string_view>

#include "parallel/local/stall.h"
#include "parallel/local/traffic.h"

namespace orthant {
namespace {

std::uint64_t hash_group(std::string_view name, const std::vector<int>& members) {
  Hash64 hash;
  hash.add(name);
  for (const int member : members) {
    hash.add(256 + static_cast<std::uint64_t>(member));
  }
  return hash.value();
}

std::string readable(std::uint64_t bytes) {
  if (bytes >= (1u << 20)) {
    return bytes % (1u << 20) == 0 ? fmt::format("{} MiB", bytes >> 20)
                                   : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return fmt::format("{} bytes", bytes);
}

const char* type_name(std::uint32_t dtype) {
  return name_of(static_cast<DType>(dtype));
}

}  // namespace

LocalChannel::LocalChannel(std::shared_ptr<LocalSegment> segment, int channel, std::string name,
                           std::vector<int> members, int rank, double timeout_seconds)
    : segment_(std::move(segment)),
      layout_(segment_->options(), segment_->world_size()),
      name_(std::move(name)),
      members_(std::move(members)),
      rank_(rank),
      timeout_seconds_(timeout_seconds),
      patience_(segment_->world_size()),
      group_hash_(hash_group(name_, members_)) {
  std::byte* own = segment_->area(channel, members_[rank_]);
  const auto pair = [this](std::byte* sender_area, int receiver) {
    const auto r = static_cast<std::size_t>(receiver);
    return Pair{reinterpret_cast<Mailbox*>(sender_area + layout_.mailboxes) + r,
                sender_area + layout_.mailbox_data + 2 * layout_.mailbox_bytes * r, patience_};
  };
  for (const int world_rank : members_) {
    std::byte* area = segment_->area(channel, world_rank);
    areas_.push_back({reinterpret_cast<AreaControl*>(area), area});
    outgoing_.push_back(pair(own, world_rank));
    incoming_.push_back(pair(area, members_[rank_]));
  }
}

std::byte* LocalChannel::slot(int member, std::uint32_t round, std::size_t base) const {
  return areas_[member].area + base + (round % 2) * layout_.stage_bytes;
}

bool LocalChannel::has_arrived(int member) const {
  return reached(areas_[member].control->arrived.value.load(), round_);
}

void LocalChannel::open(Collective kind, DType dtype, std::uint64_t bytes, ReduceOp op, int root,
                        std::uint64_t rounds) {
  segment_->beat(members_[rank_]);
  const CallHeader next{kind,
                        static_cast<std::uint32_t>(dtype),
                        static_cast<std::uint32_t>(op),
                        root,
                        call_.sequence + 1,
                        bytes,
                        group_hash_,
                        rounds};
  if (segment_->failed()) {
    give_up(next);
  }
  // Slots of two rounds ago are free again. In a rooted collective this is also the first time that all members'
  // calls can be compared with this one's.
  wait_for_all();
  call_ = next;
  compared_ = false;
  count_call(call_);
  areas_[rank_].control->header[call_.sequence % 2] = call_;
}

void LocalChannel::count_call(const CallHeader& call) {
  TrafficCounter& own = counter(call.kind);
  own.calls.fetch_add(1, std::memory_order_relaxed);
  own.ideal_bytes.fetch_add(ideal_bytes(call, rank_, size()), std::memory_order_relaxed);
}

void LocalChannel::count_moved(Collective kind, std::uint64_t bytes) {
  counter(kind).moved_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void LocalChannel::arrive() {
  ++round_;
  SharedWord& own = areas_[rank_].control->arrived;
  own.stored_ns.store(now_ns(), std::memory_order_relaxed);
  own.value.store(round_);
  wake(own);
  SharedWord& everyone = areas_[0].control->everyone;
  if (everyone.sleepers.load() != 0) {
    for (int member = 0; member < size(); ++member) {
      if (!has_arrived(member)) {
        return;
      }
    }
    everyone.value.fetch_add(1);
    wake(everyone);
  }
}

void LocalChannel::wait_for_all() {
  if (all_round_ != round_) {
    int next = 0;  // members below it have arrived
    WaitTime waited;
    wait_until(
        areas_[0].control->everyone, patience_,
        [&] {
          while (next < size() && has_arrived(next)) {
            ++next;
          }
          return next == size();
        },
        [&] {
          std::int64_t last = 0;
          for (const Member& member : areas_) {
            last = std::max(last, member.control->arrived.stored_ns.load(std::memory_order_relaxed));
          }
          return last;
        },
        [&] { check_waiting(waited, -1); });
    all_round_ = round_;
  }
  if (!compared_) {
    for (int member = 0; member < size(); ++member) {
      compare(member, call_);
    }
    compared_ = true;
  }
}

void LocalChannel::wait_for(int member) {
  WaitTime waited;
  wait_until(
      areas_[member].control->arrived, patience_, [&] { return has_arrived(member); },
      [&] { return areas_[member].control->arrived.stored_ns.load(std::memory_order_relaxed); },
      [&] { check_waiting(waited, member); });
  compare(member, call_);
}

void LocalChannel::compare(int member, const CallHeader& own) {
  const CallHeader& other = areas_[member].control->header[own.sequence % 2];
  const bool same_bytes = own.bytes == other.bytes || own.kind == Collective::all_to_all;
  if (other.kind == own.kind && other.sequence == own.sequence && other.dtype == own.dtype && other.op == own.op &&
      other.root == own.root && same_bytes && other.group == own.group) {
    return;
  }
  const auto view = [this](int who, const CallHeader& h) {
    const std::string root = h.root < 0 ? "" : fmt::format(" with root {}", h.root);
    return fmt::format("rank {} called {} #{} of {} bytes ({}{})", members_[who], name_of(h.kind), h.sequence, h.bytes,
                       type_name(h.dtype), root);
  };
  if (other.group != own.group) {
    fail_other_group(member);
  }
  const bool only_op = other.kind == own.kind && other.sequence == own.sequence && other.dtype == own.dtype &&
                       other.root == own.root && same_bytes;
  fail_world(members_[rank_],
             fmt::format("{} while {} in group '{}'{}: every member must make the same calls in the same order",
                         view(member, other), view(rank_, own), name_, only_op ? " with another operator" : ""));
}

void LocalChannel::fail_other_group(int member) {
  fail_world(members_[rank_],
             fmt::format("ranks {} and {} made group '{}' with different names or members: split must be called in the "
                         "same order on every rank",
                         members_[rank_], members_[member], name_));
}

void LocalChannel::check_waiting(WaitTime& waited, int only_member) {
  if (segment_->failed()) {
    give_up(call_);
  }
  for (int member = 0; member < size(); ++member) {
    const int world_rank = members_[member];
    if ((only_member < 0 || member == only_member) && segment_->state(world_rank) == RankState::finished &&
        !has_arrived(member)) {
      fail_world(world_rank, fmt::format("rank {} finished its work without a call to {}, which others wait in",
                                         world_rank, describe(call_)));
    }
  }
  std::uint64_t missing = 0;
  for (int member = 0; member < size(); ++member) {
    if ((only_member < 0 || member == only_member) && !has_arrived(member)) {
      missing |= std::uint64_t{1} << members_[member];
    }
  }
  if (missing != 0) {  // otherwise the last one came just now
    check_time(waited, missing, [&] {
      return fmt::format("{} did not arrive at {} within {:g} s", names_of(missing), describe(call_), timeout_seconds_);
    });
  }
}

void LocalChannel::check_time(WaitTime& waited, std::uint64_t missing, const std::function<std::string()>& too_late) {
  const int own = members_[rank_];
  segment_->say_waiting(own, missing);
  if (waited.look() < timeout_seconds_) {
    return;
  }
  const Stall stall = find_stall(*segment_, missing, timeout_seconds_ / 2);
  if (stall.reader_is_stopped) {
    waited = {};
    return;
  }
  if (stall.seconds_since_busy >= timeout_seconds_) {
    fail_world(stall.rank, fmt::format("{}: {} (run.timeout_seconds is how long to wait)", too_late(), stall.account));
  }
}

std::string LocalChannel::describe(const CallHeader& call) const {
  return fmt::format("{} #{} ({}) of group '{}'", name_of(call.kind), call.sequence, readable(call.bytes), name_);
}

void LocalChannel::give_up(const CallHeader& call) {
  const std::optional<WorldFailure> failure = segment_->failure();
  throw PeerError(fmt::format("{} was given up: {}", describe(call), failure ? failure->why : "the world has failed"));
}

void LocalChannel::fail_world(int rank_at_fault, const std::string& why) {
  segment_->mark_failed(rank_at_fault, why);
  throw Error(why);
}

}  // namespace orthant
