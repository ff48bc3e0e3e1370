// send and recv of LocalChannel: one ring of two chunks for each direction of each pair. A message of up to two
// chunks leaves send() without waiting for the receiver; a larger one waits for it.
#include <algorithm>
#include <cstring>

#include "parallel/local/channel.h"

namespace orthant {
template <class Ready>
void LocalChannel::wait_for_pair(Pair& pair, SharedWord& word, Ready ready, const CallHeader& call, int peer) {
  const int other = members_[peer];
  WaitTime waited;
  wait_until(
      word, pair.patience, ready, [&] { return word.stored_ns.load(std::memory_order_relaxed); },
      [&] {
        if (segment_->failed()) {
          give_up(call);
        }
        if (ready()) {
          return;
        }
        check_time(waited, std::uint64_t{1} << other, [&] {
          return fmt::format("rank {} did not {} what rank {} waits for in {} within {:g} s", other,
                             call.kind == Collective::send ? "receive" : "send", members_[rank_], describe(call),
                             timeout_seconds_);
        });
      });
}

void LocalChannel::send(const void* data, std::int64_t n, DType dtype, int to) {
  Pair& pair = outgoing_[to];
  Mailbox& box = *pair.box;
  const std::size_t bytes = static_cast<std::size_t>(n) * size_of(dtype);
  const CallHeader call{
      Collective::send, static_cast<std::uint32_t>(dtype), 0, -1, ++pair.messages, bytes, group_hash_, 0};
  segment_->beat(members_[rank_]);
  if (segment_->failed()) {
    give_up(call);
  }
  count_call(call);
  std::size_t at = 0;
  do {
    wait_for_pair(
        pair, box.received, [&] { return reached(box.received.value.load() + 1, pair.chunks); }, call, to);
    const std::size_t count = std::min(bytes - at, layout_.mailbox_bytes);
    box.header[pair.chunks % 2] = call;
    if (count > 0) {
      std::memcpy(pair.data + (pair.chunks % 2) * layout_.mailbox_bytes, static_cast<const std::byte*>(data) + at,
                  count);
    }
    at += count;
    box.sent.stored_ns.store(now_ns(), std::memory_order_relaxed);
    box.sent.value.store(++pair.chunks);
    wake(box.sent);
  } while (at < bytes);
}

void LocalChannel::recv(void* data, std::int64_t n, DType dtype, int from) {
  Pair& pair = incoming_[from];
  Mailbox& box = *pair.box;
  const std::size_t bytes = static_cast<std::size_t>(n) * size_of(dtype);
  const CallHeader call{
      Collective::recv, static_cast<std::uint32_t>(dtype), 0, -1, ++pair.messages, bytes, group_hash_, 0};
  segment_->beat(members_[rank_]);
  if (segment_->failed()) {
    give_up(call);
  }
  std::size_t at = 0;
  do {
    wait_for_pair(
        pair, box.sent, [&] { return reached(box.sent.value.load(), pair.chunks + 1); }, call, from);
    const CallHeader& sent = box.header[pair.chunks % 2];
    if (sent.group != call.group) {
      fail_other_group(from);
    }
    if (sent.bytes != bytes || sent.dtype != call.dtype) {
      fail_world(members_[rank_],
                 fmt::format("rank {} sent {} bytes ({}) to rank {}, which expects {} bytes ({}), in message #{} of "
                             "this pair in group '{}'",
                             members_[from], sent.bytes, name_of(static_cast<DType>(sent.dtype)), members_[rank_],
                             bytes, name_of(dtype), call.sequence, name_));
    }
    const std::size_t count = std::min(bytes - at, layout_.mailbox_bytes);
    if (count > 0) {
      std::memcpy(static_cast<std::byte*>(data) + at, pair.data + (pair.chunks % 2) * layout_.mailbox_bytes, count);
      count_moved(Collective::send, count);
    }
    at += count;
    box.received.stored_ns.store(now_ns(), std::memory_order_relaxed);
    box.received.value.store(++pair.chunks);
    wake(box.received);
  } while (at < bytes);
}

}  // namespace orthant
