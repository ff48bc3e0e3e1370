#include "core/device/cuda/cuda_device.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/base/check.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/launch.h"
#include "core/device/cuda/side_stream.h"
#include "core/device/cuda/usable.h"

namespace orthant::cuda {
namespace {

// A copy in pinned memory, written back where it may have been changed. `stream` has done what the view must see.
class StagedView final : public HostView {
 public:
  StagedView(const Tensor& tensor, Access access, PinnedCache& pinned, cudaStream_t stream)
      : HostView(nullptr, tensor.bytes()), tensor_(tensor), access_(access), pinned_(pinned), stream_(stream) {
    block_ = pinned_.take(bytes_);
    data_ = block_.data;
    if (access_ != Access::write && bytes_ > 0) {
      cudaError_t status = cudaMemcpyAsync(data_, tensor_.data(), bytes_, cudaMemcpyDeviceToHost, stream_);
      if (status == cudaSuccess) {
        status = cudaStreamSynchronize(stream_);
      }
      if (status != cudaSuccess) {
        pinned_.give(block_);
        check(status, "reading a tensor on the host");
      }
    }
  }
  // A failure to write back shows up where the stream is next waited for.
  ~StagedView() override {
    if (access_ != Access::read && bytes_ > 0) {
      static_cast<void>(cudaMemcpyAsync(tensor_.data(), data_, bytes_, cudaMemcpyHostToDevice, stream_));
      static_cast<void>(cudaStreamSynchronize(stream_));
    }
    pinned_.give(block_);
  }

 private:
  Tensor tensor_;
  Access access_;
  PinnedCache& pinned_;
  cudaStream_t stream_;
  PinnedCache::Block block_;
};

// Of a tensor in the host's memory.
class DirectView final : public HostView {
 public:
  explicit DirectView(const Tensor& tensor) : HostView(tensor.as<std::byte>(), tensor.bytes()), tensor_(tensor) {}

 private:
  Tensor tensor_;
};

// This rank's number on its machine.
int local_rank() {
  for (const char* name : {"ORTHANT_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') {
      continue;
    }
    int value = -1;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    require(error == std::errc() && stop == end && value >= 0,
            "{}={}: expected this rank's number on its machine, which chooses its GPU", name, text);
    return value;
  }
  return 0;
}

bool cached(const std::string& device) {
  if (const char* text = std::getenv("ORTHANT_CUDA_CACHE"); text != nullptr && *text != '\0') {
    require(std::strcmp(text, "0") == 0 || std::strcmp(text, "1") == 0,
            "ORTHANT_CUDA_CACHE={}: expected 0 (every block is the driver's) or 1", text);
    return *text == '1';
  }
  return device == "cuda";
}

}  // namespace

CudaDevice::CudaDevice(std::string name, std::string experts, int host_threads, bool deterministic)
    : name_(std::move(name)), expert_kernels_(std::move(experts)), deterministic_(deterministic), owns_stream_(true) {
  ordinal_ = local_rank() % usable_gpus(name_);
  check(cudaSetDevice(ordinal_), fmt::format("choosing GPU {}", ordinal_));
  int major = 0, minor = 0, shared_memory = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal_), "asking the GPU");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal_), "asking the GPU");
  check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal_), "asking the GPU");
  check(cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal_), "asking the GPU");
  shared_memory_ = static_cast<std::size_t>(shared_memory);
  kernel_limits_ = std::make_shared<KernelLimits>(shared_memory_);
  architecture_ = 10 * major + minor;
  require(architecture_ >= 80, "GPU {} has compute capability {}.{}; device \"{}\" needs 8.0 (Ampere) or later",
          ordinal_, major, minor, name_);
  check(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking), "making a stream");
  gpu_ = std::make_shared<GpuMemory>(ordinal_, cached(name_));
  gpu_->serve([this] { collect(true); }, [this] { return memory(); });
  pinned_ = std::make_shared<PinnedCache>();
  events_ = std::make_shared<EventPool>(ordinal_);
  host_tensors_ = std::make_shared<HostTensors>(*pinned_, *events_, main_);
  arena_ = std::make_unique<Arena>(gpu_, main_);
  host_processor_ = make_cpu_device(host_threads);
}

CudaDevice::CudaDevice(CudaDevice& of, cudaStream_t stream)
    : Device(of),
      name_(of.name_),
      expert_kernels_(of.expert_kernels_),
      deterministic_(of.deterministic_),
      ordinal_(of.ordinal_),
      multiprocessors_(of.multiprocessors_),
      architecture_(of.architecture_),
      shared_memory_(of.shared_memory_),
      kernel_limits_(of.kernel_limits_),
      owns_stream_(false),
      main_(stream),
      gpu_(of.gpu_),
      pinned_(of.pinned_),
      events_(of.events_),
      host_tensors_(of.host_tensors_),
      arena_(std::make_unique<Arena>(gpu_, stream)) {}

CudaDevice::~CudaDevice() {
  arena_.reset();
  if (owns_stream_) {
    static_cast<void>(cudaStreamSynchronize(main_));
    host_tensors_.reset();
    static_cast<void>(cudaStreamDestroy(main_));
  }
}

std::unique_ptr<Stream> CudaDevice::make_main_stream() {
  return std::make_unique<CudaStream>(*this, main_);
}

std::unique_ptr<Stream> CudaDevice::make_side_stream() {
  return std::make_unique<CudaSideStream>(*this);
}

std::unique_ptr<Stream> CudaDevice::make_host_stream() {
  require(host_processor_ != nullptr, "a side stream's device makes no streams");
  return host_processor_->make_host_stream();
}

std::unique_ptr<HostView> CudaDevice::host_view(const Tensor& tensor, Access access) {
  require_defined("host_view", "tensor", tensor);
  cudaStream_t stream = main_;
  {
    const std::lock_guard lock(mutex_);
    if (const auto worker = threads_.find(std::this_thread::get_id()); worker != threads_.end()) {
      stream = worker->second;
    }
  }
  if (stream == main_) {
    require_not_capturing("host_view");
    check(cudaStreamSynchronize(main_), "host_view: waiting for the stream");
  }
  if (tensor.on_host()) {
    return std::make_unique<DirectView>(tensor);
  }
  return std::make_unique<StagedView>(tensor, access, *pinned_, stream);
}

std::uint64_t CudaDevice::allocation_of(const Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto found = allocation_.find(tensor.storage()->data());
  return found == allocation_.end() ? 0 : found->second;
}

void CudaDevice::add(const std::shared_ptr<KeptTensors>& kept) {
  const std::lock_guard lock(mutex_);
  std::erase_if(kept_, [](const auto& known) { return known.expired(); });
  kept_.push_back(kept);
}

void CudaDevice::adopt_thread(cudaStream_t stream) {
  check(cudaSetDevice(ordinal_), fmt::format("choosing GPU {}", ordinal_));
  const std::lock_guard lock(mutex_);
  threads_[std::this_thread::get_id()] = stream;
}

void CudaDevice::release_thread(std::thread::id thread) {
  const std::lock_guard lock(mutex_);
  threads_.erase(thread);
}

void CudaDevice::set_capturing(bool now) {
  capturing_ = now;
  gpu_->set_capturing(now);
}

void CudaDevice::require_not_capturing(const char* what, const char* why) const {
  require(!capturing_, "{} inside together(): {}", what, why);
}

// Side streams may have tensors that nobody else needs: they are looked through here, because here it matters.
void CudaDevice::collect(bool wait) {
  std::vector<std::shared_ptr<KeptTensors>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& known : kept_) {
      if (auto kept = known.lock()) {
        all.push_back(std::move(kept));
      }
    }
  }
  for (const auto& kept : all) {
    wait ? kept->wait_and_collect() : kept->collect();
  }
}

// While a graph is captured nothing can be waited for.
void CudaDevice::make_room() {
  collect(!capturing_);
}

void* CudaDevice::allocate(std::size_t bytes) {
  collect(false);
  void* const data = arena_->take(bytes);
  const std::lock_guard lock(mutex_);
  allocation_[data] = ++allocations_;
  return data;
}

void CudaDevice::release(void* data, std::size_t) noexcept {
  {
    const std::lock_guard lock(mutex_);
    allocation_.erase(data);
  }
  arena_->give(data);
}

void* CudaDevice::allocate_host(std::size_t bytes) {
  collect(false);
  return host_tensors_->allocate(bytes, capturing_);
}

void CudaDevice::release_host(void* data, std::size_t) noexcept {
  host_tensors_->release(data, capturing_);
}

}  // namespace orthant::cuda
