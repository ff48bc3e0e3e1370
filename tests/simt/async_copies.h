// What multiprocessors do beside their threads, for the CPU: copies that end later (core/device/cuda/tensor_core.h).
// Meanings are those of the PTX ISA, sections on cp.async and ldmatrix.
//
// The place of a copy that has not ended is NaN.
#pragma once

#include <source_location>

namespace orthant::simt {

// 16 bytes to shared memory, both aligned, zeros where `from` is null; in groups (cp.async.commit_group, .wait_group):
// a group ends when it is waited for.
void copy_later(void* to, const void* from, const std::source_location& where = std::source_location::current());
void end_copies();
// Until at most `left` of this thread's last groups are going on.
void wait_for_copies(int left);

// Where a row that a lane names for ldmatrix is not aligned to 16 bytes: an error.
void check_matrix_row(const void* row, const std::source_location& where = std::source_location::current());

}  // namespace orthant::simt
