// The collectives and messages of a channel, once its members agree on them.
#include <algorithm>
#include <climits>
#include <cstring>

#include "mpi_calls.h"
#include "mpi_channel.h"

namespace orthant {
namespace {

// Up to here everybody sends everything to everybody.
constexpr std::int64_t small_bytes = 4096;
// Pieces of larger reductions: bounds the extra memory, and every count below MPI's int.
constexpr std::int64_t piece_bytes = 16 << 20;

// `bytes` bytes as one element, so that displacements count blocks and not bytes.
class Block {
 public:
  explicit Block(std::int64_t bytes) {
    require(bytes <= INT_MAX, "MPI cannot move a block of {} bytes: split the tensor below 2 GiB per rank", bytes);
    check_mpi(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type_), "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~Block() { MPI_Type_free(&type_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

std::int64_t bytes_of(std::int64_t n, DType dtype) {
  return n * static_cast<std::int64_t>(size_of(dtype));
}

const std::byte* at(const void* data, std::int64_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}
std::byte* at(void* data, std::int64_t bytes) {
  return static_cast<std::byte*>(data) + bytes;
}

// out[i] = the blocks' sum in order; blocks of n elements follow each other.
void reduce_blocks(void* out, const std::vector<std::byte>& blocks, int count, std::int64_t n, DType dtype,
                   ReduceOp op) {
  std::vector<const void*> sources;
  for (int r = 0; r < count; ++r) {
    sources.push_back(at(blocks.data(), r * bytes_of(n, dtype)));
  }
  reduce_in_rank_order(out, sources, n, dtype, op);
}

}  // namespace

template <class F>
void MpiChannel::move_blocks(const Call& call, const char* function, const F& start) {
  if (call.bytes == 0) {
    return;
  }
  const Block block(call.bytes);
  MPI_Request request;
  check_mpi(start(block.type(), &request), function);
  wait(call, request);
}

void MpiChannel::barrier() {
  begin("barrier", barrier_kind, 0, DType::u8);
}

void MpiChannel::all_reduce(void* data, std::int64_t n, DType dtype, ReduceOp op) {
  const Call call = begin("all_reduce", all_reduce_kind, bytes_of(n, dtype), dtype, op);
  const std::int64_t p = size();
  MPI_Request request;
  if (call.bytes <= small_bytes) {
    if (n == 0) {
      return;
    }
    std::vector<std::byte> all(p * call.bytes);
    const int count = static_cast<int>(call.bytes);
    check_mpi(MPI_Iallgather(data, count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_, &request), "MPI_Iallgather");
    wait(call, request);
    return reduce_blocks(data, all, size(), n, dtype, op);
  }
  // Range r of each piece is summed by rank r. The last range is padded with what does not matter.
  const std::int64_t step = bytes_of(1, dtype) * ((piece_bytes / bytes_of(1, dtype)));
  for (std::int64_t begin_byte = 0; begin_byte < call.bytes; begin_byte += step) {
    const std::int64_t bytes = std::min(step, call.bytes - begin_byte);
    const std::int64_t range = (bytes / bytes_of(1, dtype) + p - 1) / p;  // elements
    const std::int64_t range_bytes = bytes_of(range, dtype);
    std::vector<std::byte> mine(p * range_bytes), theirs(mine.size());
    std::vector<std::byte> sum(range_bytes);
    std::memcpy(mine.data(), at(data, begin_byte), static_cast<std::size_t>(bytes));
    const Block block(range_bytes);
    check_mpi(MPI_Ialltoall(mine.data(), 1, block.type(), theirs.data(), 1, block.type(), comm_, &request),
              "MPI_Ialltoall");
    wait(call, request);
    reduce_blocks(sum.data(), theirs, size(), range, dtype, op);
    check_mpi(MPI_Iallgather(sum.data(), 1, block.type(), mine.data(), 1, block.type(), comm_, &request),
              "MPI_Iallgather");
    wait(call, request);
    std::memcpy(at(data, begin_byte), mine.data(), static_cast<std::size_t>(bytes));
  }
}

void MpiChannel::reduce_scatter(void* out, const void* in, std::int64_t n, DType dtype, ReduceOp op) {
  const Call call = begin("reduce_scatter", reduce_scatter_kind, bytes_of(n, dtype), dtype, op);
  if (n == 0) {
    return;
  }
  std::vector<std::byte> theirs(size() * call.bytes);
  const Block block(call.bytes);
  MPI_Request request;
  check_mpi(MPI_Ialltoall(in, 1, block.type(), theirs.data(), 1, block.type(), comm_, &request), "MPI_Ialltoall");
  wait(call, request);
  reduce_blocks(out, theirs, size(), n, dtype, op);
}

void MpiChannel::all_gather(void* out, const void* in, std::int64_t n, DType dtype) {
  const Call call = begin("all_gather", all_gather_kind, bytes_of(n, dtype), dtype);
  const bool in_place = in == at(out, rank_ * call.bytes);
  move_blocks(call, "MPI_Iallgather", [&](MPI_Datatype block, MPI_Request* request) {
    return MPI_Iallgather(in_place ? MPI_IN_PLACE : in, 1, block, out, 1, block, comm_, request);
  });
}

void MpiChannel::all_to_all(void* out, std::span<const std::int64_t> recv, const void* in,
                            std::span<const std::int64_t> send, DType dtype) {
  std::int64_t total = 0;
  for (const std::int64_t count : send) {
    total += bytes_of(count, dtype);
  }
  const Call call = begin("all_to_all", all_to_all_kind, total, dtype);
  const std::size_t p = members_.size();
  // Counts first, so that a disagreement is an error and not a truncation.
  std::vector<std::int64_t> mine(send.begin(), send.end()), theirs(p);
  MPI_Request request;
  check_mpi(MPI_Ialltoall(mine.data(), 1, MPI_INT64_T, theirs.data(), 1, MPI_INT64_T, comm_, &request),
            "MPI_Ialltoall");
  wait(call, request);
  for (std::size_t r = 0; r < p; ++r) {
    if (theirs[r] != recv[r]) {
      fail_here(fmt::format(
          "rank {} sends {} bytes to rank {} in {}, which expects {} bytes: send_rows and recv_rows "
          "must agree pairwise",
          members_[r], bytes_of(theirs[r], dtype), members_[rank_], describe(call), bytes_of(recv[r], dtype)));
    }
  }
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  std::int64_t to = 0, from = 0, own_to = 0, own_from = 0;
  const auto count_of = [&](std::int64_t bytes) {
    require(bytes <= INT_MAX, "MPI cannot send {} bytes at once: split the tensor below 2 GiB per rank", bytes);
    return static_cast<int>(bytes);
  };
  for (std::size_t r = 0; r < p; ++r) {
    const std::int64_t in_bytes = bytes_of(recv[r], dtype), out_bytes = bytes_of(send[r], dtype);
    if (static_cast<int>(r) == rank_) {
      own_to = to;
      own_from = from;
    } else {
      if (in_bytes > 0) {
        check_mpi(MPI_Irecv(at(out, to), count_of(in_bytes), MPI_BYTE, static_cast<int>(r), data_tag, comm_,
                            &requests.emplace_back()),
                  "MPI_Irecv");
        peers.push_back(static_cast<int>(r));
      }
      if (out_bytes > 0) {
        check_mpi(MPI_Isend(at(in, from), count_of(out_bytes), MPI_BYTE, static_cast<int>(r), data_tag, comm_,
                            &requests.emplace_back()),
                  "MPI_Isend");
        peers.push_back(static_cast<int>(r));
      }
    }
    to += in_bytes;
    from += out_bytes;
  }
  const std::int64_t own_bytes = bytes_of(send[rank_], dtype);
  if (own_bytes > 0) {
    std::memcpy(at(out, own_to), at(in, own_from), static_cast<std::size_t>(own_bytes));
  }
  wait(call, requests, peers);
}

void MpiChannel::broadcast(void* data, std::int64_t n, DType dtype, int root) {
  const Call call = begin("broadcast", broadcast_kind, bytes_of(n, dtype), dtype, ReduceOp::sum, root);
  move_blocks(call, "MPI_Ibcast", [&](MPI_Datatype block, MPI_Request* request) {
    return MPI_Ibcast(data, 1, block, root, comm_, request);
  });
}

void MpiChannel::reduce(void* data, std::int64_t n, DType dtype, ReduceOp op, int root) {
  const Call call = begin("reduce", reduce_kind, bytes_of(n, dtype), dtype, op, root);
  const std::int64_t step = piece_bytes / bytes_of(1, dtype) / size();  // elements
  for (std::int64_t first = 0; first < n; first += step) {
    const std::int64_t count = std::min(step, n - first);
    const int bytes = static_cast<int>(bytes_of(count, dtype));
    std::vector<std::byte> all(rank_ == root ? static_cast<std::size_t>(size()) * static_cast<std::size_t>(bytes) : 0);
    std::byte* here = at(data, bytes_of(first, dtype));
    MPI_Request request;
    check_mpi(MPI_Igather(here, bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, root, comm_, &request), "MPI_Igather");
    wait(call, request);
    if (rank_ == root) {
      reduce_blocks(here, all, size(), count, dtype, op);
    }
  }
}

void MpiChannel::gather(void* out, const void* in, std::int64_t n, DType dtype, int root) {
  const Call call = begin("gather", gather_kind, bytes_of(n, dtype), dtype, ReduceOp::sum, root);
  const bool in_place = rank_ == root && in == at(out, rank_ * call.bytes);
  move_blocks(call, "MPI_Igather", [&](MPI_Datatype block, MPI_Request* request) {
    return MPI_Igather(in_place ? MPI_IN_PLACE : in, 1, block, out, 1, block, root, comm_, request);
  });
}

void MpiChannel::scatter(void* out, const void* in, std::int64_t n, DType dtype, int root) {
  const Call call = begin("scatter", scatter_kind, bytes_of(n, dtype), dtype, ReduceOp::sum, root);
  const bool in_place = rank_ == root && out == at(in, rank_ * call.bytes);
  move_blocks(call, "MPI_Iscatter", [&](MPI_Datatype block, MPI_Request* request) {
    return MPI_Iscatter(in, 1, block, in_place ? MPI_IN_PLACE : out, 1, block, root, comm_, request);
  });
}

void MpiChannel::send(const void* data, std::int64_t n, DType dtype, int to) {
  const std::int64_t bytes = bytes_of(n, dtype);
  const Call call{"send", 0, ++sent_[to], bytes, static_cast<std::int64_t>(dtype), 0, -1};
  const std::int64_t header[2] = {bytes, call.dtype};
  require(bytes <= INT_MAX, "MPI cannot send {} bytes at once: split the tensor below 2 GiB", bytes);
  std::vector<MPI_Request> requests(2);
  check_mpi(MPI_Isend(header, 2, MPI_INT64_T, to, message_tag, comm_, &requests[0]), "MPI_Isend");
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, message_data_tag, comm_, &requests[1]), "MPI_Isend");
  wait(call, requests, {to, to});
}

void MpiChannel::recv(void* data, std::int64_t n, DType dtype, int from) {
  const std::int64_t bytes = bytes_of(n, dtype);
  const Call call{"recv", 0, ++received_[from], bytes, static_cast<std::int64_t>(dtype), 0, -1};
  std::int64_t header[2] = {};
  std::vector<MPI_Request> requests(1);
  check_mpi(MPI_Irecv(header, 2, MPI_INT64_T, from, message_tag, comm_, &requests[0]), "MPI_Irecv");
  wait(call, requests, {from});
  if (header[0] != bytes || header[1] != call.dtype) {
    fail_here(
        fmt::format("rank {} sent {} bytes ({}) to rank {}, which expects {} bytes ({}), in message #{} of this "
                    "pair in group '{}'",
                    members_[from], header[0], name_of(static_cast<DType>(header[1])), members_[rank_], bytes,
                    name_of(dtype), call.sequence, name_));
  }
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, message_data_tag, comm_, &requests[0]),
            "MPI_Irecv");
  wait(call, requests, {from});
}

}  // namespace orthant
