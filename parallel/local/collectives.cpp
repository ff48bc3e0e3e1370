// The collectives of LocalChannel as rounds of staged chunks.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "parallel/local/channel.h"

namespace orthant {
namespace {

// Up to here every member reads all contributions itself: one wait instead of two.
constexpr std::size_t small_bytes = 16 * 1024;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::uint64_t bytes_of(std::int64_t n, DType dtype) {
  return static_cast<std::uint64_t>(n) * size_of(dtype);
}

void copy_bytes(void* to, const void* from, std::uint64_t n) {
  if (n > 0 && to != from) {
    std::memcpy(to, from, n);
  }
}

// [begin, end) of an index range.
struct Range {
  std::int64_t begin, end;
  std::int64_t count() const { return end - begin; }
};

// Chunk i of [0, n) in chunks of `step`.
Range chunk(std::int64_t i, std::int64_t n, std::int64_t step) {
  return {std::min(i * step, n), std::min((i + 1) * step, n)};
}

Range intersect(Range a, Range b) {
  const Range r{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return r.count() > 0 ? r : Range{0, 0};
}

void require_reducible(DType dtype) {
  require(is_summable(dtype), "{} tensors can be moved but not reduced: use f32, bf16, f64, i32 or i64",
          name_of(dtype));
}

}  // namespace

void LocalChannel::take(void* to, const std::byte* from, std::uint64_t bytes) {
  copy_bytes(to, from, bytes);
  count_moved(call_.kind, bytes);
}

void LocalChannel::reduce_stages(void* out, std::int64_t offset, std::int64_t n, DType dtype, ReduceOp op,
                                 const void* own) {
  std::array<const void*, LocalSegment::max_world> sources{};
  for (int member = 0; member < size(); ++member) {
    sources[member] = member == rank_ && own != nullptr ? own : stage_of(member) + offset;
  }
  reduce_in_rank_order(out, {sources.data(), members_.size()}, n, dtype, op);
  count_moved(call_.kind, bytes_of(n, dtype) * (members_.size() - 1));
}

template <class Write, class Read>
void LocalChannel::pipeline(std::int64_t rounds, Write write, Read read) {
  for (std::int64_t i = 0; i < rounds; ++i) {
    write(i);
    if (i > 0) {
      read(i - 1);
    }
    arrive();
    wait_for_all();
  }
  read(rounds - 1);
}

void LocalChannel::barrier() {
  open(Collective::barrier, DType::u8, 0);
  arrive();
  wait_for_all();
}

void LocalChannel::all_reduce(void* data, std::int64_t n, DType dtype, ReduceOp op) {
  require_reducible(dtype);
  const std::uint64_t bytes = bytes_of(n, dtype);
  open(Collective::all_reduce, dtype, bytes, op);
  if (bytes > std::min(small_bytes, layout_.stage_bytes)) {
    return all_reduce_large(static_cast<std::byte*>(data), n, dtype, op);
  }
  copy_bytes(stage_to_write(), data, bytes);
  arrive();
  wait_for_all();
  reduce_stages(data, 0, n, dtype, op);
}

// Chunk i is staged in round i, member j reduces its range j of it in round i + 1, all collect the ranges in round
// i + 2; the three run side by side on successive chunks.
void LocalChannel::all_reduce_large(std::byte* data, std::int64_t n, DType dtype, ReduceOp op) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t line = 64 / element;
  const std::int64_t chunks = ceil_div(n * element, static_cast<std::int64_t>(layout_.stage_bytes));
  const std::int64_t step =
      std::min(ceil_div(ceil_div(n, chunks), line) * line, static_cast<std::int64_t>(layout_.stage_bytes) / element);
  const std::int64_t rounds = ceil_div(n, step);
  // Range of `member` within a chunk of `count` elements, on cache lines.
  const auto range_of = [&](int member, std::int64_t count) {
    return chunk(member, count, ceil_div(ceil_div(count, size()), line) * line);
  };
  const auto collect = [&](std::int64_t i) {
    const Range c = chunk(i, n, step);
    for (int member = 0; member < size(); ++member) {
      const Range r = range_of(member, c.count());
      std::byte* to = data + (c.begin + r.begin) * element;
      if (member == rank_) {
        copy_bytes(to, result_of(member), bytes_of(r.count(), dtype));
      } else {
        take(to, result_of(member), bytes_of(r.count(), dtype));
      }
    }
  };
  for (std::int64_t i = 0; i <= rounds; ++i) {
    if (i > 1) {
      collect(i - 2);
    }
    if (i > 0) {
      const Range r = range_of(rank_, chunk(i - 1, n, step).count());
      reduce_stages(result_to_write(), r.begin * element, r.count(), dtype, op);
    }
    if (i < rounds) {
      const Range c = chunk(i, n, step);
      copy_bytes(stage_to_write(), data + c.begin * element, bytes_of(c.count(), dtype));
    }
    arrive();
    wait_for_all();
  }
  collect(rounds - 1);
}

void LocalChannel::reduce_scatter(void* out, const void* in, std::int64_t n, DType dtype, ReduceOp op) {
  require_reducible(dtype);
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  open(Collective::reduce_scatter, dtype, bytes_of(n, dtype), op);
  // A chunk holds a slice of each member's block.
  const std::int64_t step = static_cast<std::int64_t>(layout_.stage_bytes) / element / size();
  pipeline(
      std::max<std::int64_t>(1, ceil_div(n, step)),
      [&](std::int64_t i) {
        const Range c = chunk(i, n, step);
        for (int member = 0; member < size(); ++member) {
          copy_bytes(stage_to_write() + member * step * element,
                     static_cast<const std::byte*>(in) + (member * n + c.begin) * element, bytes_of(c.count(), dtype));
        }
      },
      [&](std::int64_t i) {
        const Range c = chunk(i, n, step);
        reduce_stages(static_cast<std::byte*>(out) + c.begin * element, rank_ * step * element, c.count(), dtype, op);
      });
}

void LocalChannel::all_gather(void* out, const void* in, std::int64_t n, DType dtype) {
  const auto bytes = static_cast<std::int64_t>(bytes_of(n, dtype));
  const auto step = static_cast<std::int64_t>(layout_.stage_bytes);
  auto* to = static_cast<std::byte*>(out);
  open(Collective::all_gather, dtype, static_cast<std::uint64_t>(bytes));
  if (static_cast<std::uint64_t>(bytes) > segment_->options().direct_bytes && reads_directly() &&
      all_gather_directly(to, static_cast<const std::byte*>(in), static_cast<std::uint64_t>(bytes))) {
    return;
  }
  pipeline(
      std::max<std::int64_t>(1, ceil_div(bytes, step)),
      [&](std::int64_t i) {
        const Range c = chunk(i, bytes, step);
        const std::byte* from = static_cast<const std::byte*>(in) + c.begin;
        copy_bytes(stage_to_write(), from, static_cast<std::uint64_t>(c.count()));
        copy_bytes(to + rank_ * bytes + c.begin, from, static_cast<std::uint64_t>(c.count()));
      },
      [&](std::int64_t i) {
        const Range c = chunk(i, bytes, step);
        for (int member = 0; member < size(); ++member) {
          if (member != rank_) {
            take(to + member * bytes + c.begin, stage_of(member), static_cast<std::uint64_t>(c.count()));
          }
        }
      });
}

// Each member's send buffer is one stream of bytes in chunks; the others know from its prefix sums which part of a
// chunk is theirs. So rows may be as uneven as they like, and the rounds are those of the member that sends most.
void LocalChannel::all_to_all(void* out, std::span<const std::int64_t> recv, const void* in,
                              std::span<const std::int64_t> send, DType dtype) {
  const std::size_t p = members_.size();
  require(recv.size() == p && send.size() == p,
          "all_to_all of group '{}' needs {} counts, got {} to receive and {} to "
          "send",
          name_, p, recv.size(), send.size());
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const auto step = static_cast<std::int64_t>(layout_.stage_bytes);
  std::int64_t total = 0;
  for (const std::int64_t count : send) {
    total += count * element;
  }
  open(Collective::all_to_all, dtype, static_cast<std::uint64_t>(total), ReduceOp::sum, -1,
       static_cast<std::uint64_t>(std::max<std::int64_t>(1, ceil_div(total, step))));
  const bool direct = reads_directly();
  const std::uint64_t staged = direct ? segment_->options().direct_bytes : std::numeric_limits<std::uint64_t>::max();
  const std::size_t parity = call_.sequence % 2;
  std::uint64_t* prefix = areas_[rank_].control->prefix[parity];
  prefix[0] = 0;
  for (std::size_t r = 0; r < p; ++r) {
    prefix[r + 1] = prefix[r] + static_cast<std::uint64_t>(send[r] * element);
  }
  const Range own{static_cast<std::int64_t>(prefix[rank_]), static_cast<std::int64_t>(prefix[rank_ + 1])};
  counter(Collective::all_to_all)
      .ideal_bytes.fetch_add(static_cast<std::uint64_t>(total - own.count()), std::memory_order_relaxed);

  // All but what stays here.
  const auto write = [&](std::int64_t i) {
    const Range c = chunk(i, total, step);
    const auto* from = static_cast<const std::byte*>(in);
    for (const Range part : {intersect(c, {0, own.begin}), intersect(c, {own.end, total})}) {
      if (part.count() > 0) {
        copy_bytes(stage_to_write() + part.begin - c.begin, from + part.begin,
                   static_cast<std::uint64_t>(part.count()));
      }
    }
  };
  offer(in);
  if (static_cast<std::uint64_t>(total) <= staged) {
    write(0);
  }
  arrive();
  wait_for_all();

  struct Incoming {
    Range stream;  // of the sender's bytes, what is for this member
    std::byte* to;
  };
  std::array<Incoming, LocalSegment::max_world> incoming{};
  std::uint64_t rounds = 0, most_bytes = 0;
  auto* to = static_cast<std::byte*>(out);
  for (std::size_t r = 0; r < p; ++r) {
    const AreaControl& sender = *areas_[r].control;
    rounds = std::max(rounds, sender.header[parity].rounds);
    most_bytes = std::max(most_bytes, sender.header[parity].bytes);
    incoming[r] = {{static_cast<std::int64_t>(sender.prefix[parity][rank_]),
                    static_cast<std::int64_t>(sender.prefix[parity][rank_ + 1])},
                   to};
    if (incoming[r].stream.count() != recv[r] * element) {
      fail_world(
          members_[rank_],
          fmt::format("rank {} sends {} bytes to rank {} in {}, which expects {} bytes: send_rows and recv_rows "
                      "must agree pairwise",
                      members_[r], incoming[r].stream.count(), members_[rank_], describe(call_), recv[r] * element));
    }
    to += recv[r] * element;
  }
  copy_bytes(incoming[rank_].to, static_cast<const std::byte*>(in) + own.begin,
             static_cast<std::uint64_t>(own.count()));
  if (most_bytes > staged) {
    bool all = true;
    for (int next = 1; next < size() && all; ++next) {
      const int member = (rank_ + next) % size();
      const Incoming& from = incoming[member];
      all = read_from(member, from.to, static_cast<std::uint64_t>(from.stream.begin),
                      static_cast<std::uint64_t>(from.stream.count()));
    }
    if (settle(all)) {
      return;
    }
    write(0);  // all over again, through slots
    arrive();
    wait_for_all();
  }

  const auto read = [&](std::int64_t i) {
    for (int member = 0; member < size(); ++member) {
      const Incoming& from = incoming[member];
      const Range part = intersect(from.stream, {i * step, (i + 1) * step});
      if (member != rank_ && part.count() > 0) {
        take(from.to + part.begin - from.stream.begin, stage_of(member) + part.begin - i * step,
             static_cast<std::uint64_t>(part.count()));
      }
    }
  };
  for (std::int64_t i = 1; i < static_cast<std::int64_t>(rounds); ++i) {
    write(i);
    read(i - 1);
    arrive();
    wait_for_all();
  }
  read(static_cast<std::int64_t>(rounds) - 1);
}

void LocalChannel::broadcast(void* data, std::int64_t n, DType dtype, int root) {
  const auto bytes = static_cast<std::int64_t>(bytes_of(n, dtype));
  const auto step = static_cast<std::int64_t>(layout_.stage_bytes);
  open(Collective::broadcast, dtype, static_cast<std::uint64_t>(bytes), ReduceOp::sum, root);
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, ceil_div(bytes, step)); ++i) {
    const Range c = chunk(i, bytes, step);
    std::byte* at = static_cast<std::byte*>(data) + c.begin;
    if (rank_ == root) {
      if (i > 0) {
        wait_for_all();
      }
      copy_bytes(stage_to_write(), at, static_cast<std::uint64_t>(c.count()));
      arrive();
    } else {
      arrive();
      wait_for(root);
      take(at, stage_of(root), static_cast<std::uint64_t>(c.count()));
    }
  }
}

void LocalChannel::scatter(void* out, const void* in, std::int64_t n, DType dtype, int root) {
  const auto bytes = static_cast<std::int64_t>(bytes_of(n, dtype));
  // A chunk holds a slice of each member's block.
  const std::int64_t step = static_cast<std::int64_t>(layout_.stage_bytes) / size();
  open(Collective::scatter, dtype, static_cast<std::uint64_t>(bytes), ReduceOp::sum, root);
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, ceil_div(bytes, step)); ++i) {
    const Range c = chunk(i, bytes, step);
    const auto count = static_cast<std::uint64_t>(c.count());
    std::byte* to = static_cast<std::byte*>(out) + c.begin;
    if (rank_ == root) {
      if (i > 0) {
        wait_for_all();
      }
      for (int member = 0; member < size(); ++member) {
        const std::byte* from = static_cast<const std::byte*>(in) + member * bytes + c.begin;
        copy_bytes(member == rank_ ? to : stage_to_write() + member * step, from, count);
      }
      arrive();
    } else {
      arrive();
      wait_for(root);
      take(to, stage_of(root) + rank_ * step, count);
    }
  }
}

void LocalChannel::gather(void* out, const void* in, std::int64_t n, DType dtype, int root) {
  const auto bytes = static_cast<std::int64_t>(bytes_of(n, dtype));
  const auto step = static_cast<std::int64_t>(layout_.stage_bytes);
  open(Collective::gather, dtype, static_cast<std::uint64_t>(bytes), ReduceOp::sum, root);
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, ceil_div(bytes, step)); ++i) {
    const Range c = chunk(i, bytes, step);
    const std::byte* from = static_cast<const std::byte*>(in) + c.begin;
    const auto count = static_cast<std::uint64_t>(c.count());
    if (rank_ == root) {
      arrive();
      wait_for_all();
      for (int member = 0; member < size(); ++member) {
        std::byte* to = static_cast<std::byte*>(out) + member * bytes + c.begin;
        if (member == rank_) {
          copy_bytes(to, from, count);
        } else {
          take(to, stage_of(member), count);
        }
      }
    } else {
      if (i > 0) {
        wait_for_all();  // not only for the root: the slot's last reader may be the root of the call before
      }
      copy_bytes(stage_to_write(), from, count);
      arrive();
    }
  }
}

void LocalChannel::reduce(void* data, std::int64_t n, DType dtype, ReduceOp op, int root) {
  require_reducible(dtype);
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t step = static_cast<std::int64_t>(layout_.stage_bytes) / element;
  open(Collective::reduce, dtype, bytes_of(n, dtype), op, root);
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, ceil_div(n, step)); ++i) {
    const Range c = chunk(i, n, step);
    std::byte* at = static_cast<std::byte*>(data) + c.begin * element;
    if (rank_ == root) {
      arrive();
      wait_for_all();
      reduce_stages(at, 0, c.count(), dtype, op, at);
    } else {
      if (i > 0) {
        wait_for_all();  // not only for the root: the slot's last reader may be the root of the call before
      }
      copy_bytes(stage_to_write(), at, bytes_of(c.count(), dtype));
      arrive();
    }
  }
}

}  // namespace orthant
