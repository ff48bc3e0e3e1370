#include "tests/simt/bulk_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/simt/engine.h"
#include "tests/simt/shared_space.h"

namespace {

constexpr int most_dimensions = 5;

// What a CUtensorMap holds here.
struct Map {
  std::byte* address;
  std::uint64_t strides[most_dimensions];  // in bytes; the first is an element's
  std::uint32_t sizes[most_dimensions];
  std::uint16_t box[most_dimensions];
  std::uint16_t mark;
  std::uint8_t rank, element_bytes, swizzle;
};
constexpr std::uint16_t mark = 0x7AB5;
static_assert(sizeof(Map) <= sizeof(CUtensorMap) && std::is_trivially_copyable_v<Map>);

}  // namespace

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || address == nullptr ||
      reinterpret_cast<std::uintptr_t>(address) % 16 != 0 || rank < 1 || rank > most_dimensions) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Map made{};
  made.address = static_cast<std::byte*>(address);
  made.mark = mark;
  made.rank = static_cast<std::uint8_t>(rank);
  made.element_bytes = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  made.swizzle = static_cast<std::uint8_t>(swizzle);
  made.strides[0] = made.element_bytes;
  const std::uint64_t line = box[0] * made.element_bytes;
  if (line % 16 != 0 || (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && line > (std::uint64_t{16} << swizzle))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || sizes[i] > (std::uint64_t{1} << 32) - 1 || box[i] == 0 || box[i] > 256 ||
        element_strides[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (i > 0) {
      const std::uint64_t stride = strides[i - 1];
      if (stride % 16 != 0 || stride >= std::uint64_t{1} << 40 || stride < made.strides[i - 1] * sizes[i - 1]) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      made.strides[i] = stride;
    }
    made.sizes[i] = static_cast<std::uint32_t>(sizes[i]);
    made.box[i] = static_cast<std::uint16_t>(box[i]);
  }
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}

namespace orthant::simt {
namespace {

Map decoded(const CUtensorMap* map, const Where& where) {
  Map known;
  std::memcpy(&known, map, sizeof known);
  if (known.mark != mark || known.rank != 3) {
    misuse("not a tensor map of three dimensions", where);
  }
  return known;
}

// A box: which bytes of it lie where in global memory, and where in shared memory.
struct Box {
  Map map;
  std::int64_t first[3];

  std::uint32_t line_bytes() const { return map.box[0] * std::uint32_t{map.element_bytes}; }
  std::uint32_t lines() const { return std::uint32_t{map.box[1]} * map.box[2]; }
  std::uint32_t bytes() const { return lines() * line_bytes(); }

  // Calls take(byte of the box, address in global memory or null) for each 16 bytes. The swizzle exchanges pieces of 16
  // bytes by bits of their own address: 128 bytes: bits 4 to 6 with 7 to 9, and so on.
  template <class Take>
  void for_each_piece(std::uint32_t at, Take&& take) const {
    const int per_piece = 16 / map.element_bytes;
    for (std::uint32_t line = 0; line < lines(); ++line) {
      const std::int64_t y = first[1] + line % map.box[1], z = first[2] + line / map.box[1];
      for (std::uint32_t piece = 0; piece < line_bytes() / 16; ++piece) {
        std::uint32_t address = at + line * line_bytes() + piece * 16;
        address ^= (address >> 7 & ((1u << map.swizzle) - 1)) << 4;
        const std::int64_t x = first[0] + piece * per_piece;
        take(address, x, y, z);
      }
    }
  }
  bool has(int dimension, std::int64_t i) const { return i >= 0 && i < map.sizes[dimension]; }
  // Of 16 bytes from x on: those of element i, or null.
  std::byte* element(std::int64_t x, std::int64_t y, std::int64_t z) const {
    return has(0, x) && has(1, y) && has(2, z)
               ? map.address + x * static_cast<std::int64_t>(map.strides[0]) +
                     y * static_cast<std::int64_t>(map.strides[1]) + z * static_cast<std::int64_t>(map.strides[2])
               : nullptr;
  }
};

// at: shared address of the box.
Box box_at(const CUtensorMap* map, std::uint32_t at, int x, int y, int z, const Where& where) {
  const Box box{decoded(map, where), {x, y, z}};
  const std::uint32_t pattern = box.map.swizzle == 0 ? 128 : 128u << box.map.swizzle;
  if (at % pattern != 0) {
    misuse(fmt::format("a box at shared address {:#x}: its pattern begins at multiples of {}", at, pattern), where);
  }
  return box;
}

void write_elements(std::byte* to, const Box& box, std::int64_t x, std::int64_t y, std::int64_t z) {
  const int bytes = box.map.element_bytes;
  for (int i = 0; i < 16 / bytes; ++i) {
    if (const std::byte* const from = box.element(x + i, y, z)) {
      std::memcpy(to + i * bytes, from, bytes);
    } else {
      std::memset(to + i * bytes, 0, bytes);
    }
  }
}

void write_piece(std::uint32_t to, const std::byte (&bytes)[16], std::size_t count, const Where& where) {
  const SharedPlace place = own_place(to, count, where);
  Piece& piece = piece_at(place);
  if (piece.being_read > 0) {
    misuse("shared memory is written that a bulk store has not read yet: cp.async.bulk.wait_group", where);
  }
  ++piece.unfenced;
  piece.writer = static_cast<std::int16_t>(thread_number());
  this_thread_of_block().unfenced.push_back(&piece);
  std::memcpy(bytes_at(place), bytes, count);
}

}  // namespace

void load_box(std::uint32_t to, std::uint32_t barrier, const CUtensorMap* map, int x, int y, int z, unsigned blocks,
              const Where& where) {
  const Box box = box_at(map, to, x, y, z, where);
  const unsigned own = position->cluster_rank, asked = blocks == 0 ? 1u << own : blocks;
  own_place(to, box.bytes(), where);
  const std::uint32_t barrier_offset = own_place(barrier, 8, where).offset;
  for (unsigned rank = 0; rank < 32; ++rank) {
    if ((asked >> rank & 1) == 0) {
      continue;
    }
    const std::uint32_t first = shared_place(cluster_address(to, rank, where), box.bytes(), where).offset;
    const SharedPlace ends_at{rank, barrier_offset};
    box.for_each_piece(first + shared_begin, [&](std::uint32_t address, std::int64_t, std::int64_t, std::int64_t) {
      const SharedPlace place{rank, address - shared_begin};
      Piece& piece = piece_at(place);
      if (piece.unfenced > 0) {
        misuse(fmt::format("a bulk copy overwrites what thread {} wrote before its fence.proxy.async", piece.writer),
               where);
      }
      ++piece.on_its_way;
      std::memset(bytes_at(place), 0xFF, 16);
    });
    ++block_state().loads;
    later([=] {
      if (!block_runs(rank)) {
        misuse("a bulk copy ends in a block that has ended", where);
      }
      box.for_each_piece(first + shared_begin,
                         [&](std::uint32_t address, std::int64_t at_x, std::int64_t at_y, std::int64_t at_z) {
                           const SharedPlace place{rank, address - shared_begin};
                           --piece_at(place).on_its_way;
                           write_elements(bytes_at(place), box, at_x, at_y, at_z);
                         });
      --block_state().loads;
      complete_bytes(ends_at, box.bytes(), where);
    });
  }
}

void store_box(const CUtensorMap* map, std::uint32_t from, int x, int y, int z, const Where& where) {
  const Box box = box_at(map, from, x, y, z, where);
  const SharedPlace first = own_place(from, box.bytes(), where);
  const std::uint32_t at = first.offset + shared_begin;
  box.for_each_piece(at, [&](std::uint32_t address, std::int64_t, std::int64_t, std::int64_t) {
    Piece& piece = piece_at({first.rank, address - shared_begin});
    if (piece.unfenced > 0) {
      misuse(fmt::format("a bulk store reads what thread {} wrote before its fence.proxy.async", piece.writer), where);
    }
    ++piece.being_read;
  });
  this_thread_of_block().stores.push_back([=] {
    box.for_each_piece(at, [&](std::uint32_t address, std::int64_t at_x, std::int64_t at_y, std::int64_t at_z) {
      const SharedPlace place{first.rank, address - shared_begin};
      --piece_at(place).being_read;
      for (int i = 0; i < 16 / box.map.element_bytes; ++i) {
        if (std::byte* const to = box.element(at_x + i, at_y, at_z)) {
          std::memcpy(to, bytes_at(place) + i * box.map.element_bytes, box.map.element_bytes);
        }
      }
    });
  });
}

void end_stores() {
  BlockThread& thread = this_thread_of_block();
  thread.store_groups.push_back(std::exchange(thread.stores, {}));
}

void wait_for_stores(int left) {
  std::vector<std::vector<std::function<void()>>>& groups = this_thread_of_block().store_groups;
  const auto ending = groups.end() - std::min<std::ptrdiff_t>(left, std::ssize(groups));
  std::for_each(groups.begin(), ending, [](const std::vector<std::function<void()>>& group) {
    for (const std::function<void()>& store : group) {
      store();
    }
  });
  groups.erase(groups.begin(), ending);
}

void store_matrices(std::uint32_t row, const std::uint32_t (&r)[4], const Where& where) {
  if (row % 16 != 0) {
    misuse(fmt::format("stmatrix: a row at shared address {:#x}, which 16 does not divide", row), where);
  }
  const int lane = static_cast<int>(position->thread.x % 32);
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto address = static_cast<std::uint32_t>(
        warp_collective(Collective::shuffle, "stmatrix", ~0u, row, matrix * 8 + lane / 4, where));
    std::byte bytes[16];
    std::memcpy(bytes, &r[matrix], 4);
    write_piece(address + static_cast<std::uint32_t>(lane) % 4 * 4, bytes, 4, where);
  }
  come_together("stmatrix", where);
}

void store_zeros(std::uint32_t to, const Where& where) {
  write_piece(to, {}, 16, where);
}

}  // namespace orthant::simt
