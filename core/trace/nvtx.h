// NVTX ranges: names for spans of time in Nsight Systems' view of a run on GPUs (run.nvtx). A build without CUDA has
// none, and they do nothing. Thread safety: ranges are of the calling thread.
#pragma once

#include <string>

namespace orthant {

bool has_nvtx();
void nvtx_push(const std::string& name);
void nvtx_pop();

}  // namespace orthant
