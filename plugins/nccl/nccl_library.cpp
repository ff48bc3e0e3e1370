// The calls of NCCL and of the CUDA runtime.
//
// Communicators are made with blocking = 0: NCCL then answers "in progress" instead of waiting, so that a rank that
// never comes cannot hold this one in a call (README.md, "Why not blocking"). NCCL allows one thread at a time to give
// work to the communicators of a GPU (its user guide, "Thread safety"), hence one mutex for all calls. No call waits
// long while it holds the mutex, so that abort gets it.
#include "nccl_library.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <set>

#include <orthant/error.h>
#include <orthant/ops.h>

// By its source, older ones take one group of calls of a thread at a time where blocking is 0, connect inside of calls
// that hold the mutex, and abort one communicator after another.
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0), "NCCL 2.27 or newer is needed");

namespace orthant::nccl {
namespace {

constexpr std::size_t scratch_bytes = 16;

class LibraryConnection;

// Of all connections of this process.
struct Shared {
  std::mutex mutex;
  int gpu = 0;  // ordinal
  // Memory of the GPU for warm_up, of any content: several connections may write there at once. It is the process's.
  void* scratch = nullptr;
  std::set<LibraryConnection*> connections;
};

void check_cuda(cudaError_t status, const char* call) {
  require(status == cudaSuccess, "{} failed: {}", call, cudaGetErrorString(status));
}

void check_nccl(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) {
  if (result != ncclSuccess && result != ncclInProgress) {
    orthant::fail("{} failed: {} ({}); NCCL_DEBUG=WARN says more", call, ncclGetErrorString(result),
                  ncclGetLastError(comm));
  }
}

// Of calls that were made one after the other.
ncclResult_t first_error(ncclResult_t first, ncclResult_t second) {
  return first == ncclSuccess || first == ncclInProgress ? second : first;
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
    case DType::f64: return ncclFloat64;
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2: return ncclUint8;  // moved, never summed
  }
  orthant::fail("NCCL has no such element");
}

ncclRedOp_t operation_of(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin;
}

std::size_t count(const Tensor& t) {
  return static_cast<std::size_t>(t.elements());
}

cudaStream_t stream_of(Stream& s) {
  require(
      s.native() != nullptr,
      "NCCL moves the memory of GPUs, but this stream belongs to device \"{}\": write device = \"cuda\" under [run], "
      "or communicator = \"local\" or \"mpi\"",
      s.device().name());
  return static_cast<cudaStream_t>(s.native());
}

class LibraryConnection final : public NcclConnection {
 public:
  LibraryConnection(std::shared_ptr<Shared> shared, const ConnectionId& id, int size, int rank)
      : shared_(std::move(shared)) {
    ncclUniqueId unique{};
    static_assert(sizeof(unique.internal) == sizeof(ConnectionId));
    std::copy(id.begin(), id.end(), unique.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const std::lock_guard lock(shared_->mutex);
    use_gpu();
    check_nccl(ncclCommInitRankConfig(&comm_, size, unique, rank, &config), "ncclCommInitRankConfig");
    shared_->connections.insert(this);
    sends_ = rank == 0;
  }
  ~LibraryConnection() override {
    abort();
    const std::lock_guard lock(shared_->mutex);
    shared_->connections.erase(this);
    end_warm_up();
  }

  bool ready() override {
    const std::lock_guard lock(shared_->mutex);
    if (closing_ && comm_ == nullptr) {
      return true;
    }
    require_open();
    use_gpu();  // the watchdog asks events next, which on a thread without a GPU would open a context on the first one
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    check_nccl(state, "NCCL", comm_);
    if (state == ncclInProgress) {
      return false;
    }
    if (warming_ != nullptr) {
      const cudaError_t status = cudaStreamQuery(warming_);
      if (status == cudaErrorNotReady) {
        return false;
      }
      check_cuda(status, "warming NCCL up");
      end_warm_up();
    }
    if (closing_) {  // finalized, so this is local
      const ncclComm_t comm = comm_;
      comm_ = nullptr;
      check_nccl(ncclCommDestroy(comm), "ncclCommDestroy");
    }
    return true;
  }

  // A broadcast goes along NCCL's rings, a small sum by what is quick on this machine.
  void warm_up(Carries what) override {
    const std::lock_guard lock(shared_->mutex);
    require_open();
    use_gpu();
    check_cuda(cudaStreamCreateWithFlags(&warming_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    void* const t = shared_->scratch;
    check_nccl(ncclGroupStart(), "ncclGroupStart", comm_);
    ncclResult_t result = ncclSuccess;
    if (what == Carries::messages) {
      result = sends_ ? ncclSend(t, 1, ncclUint8, 1, comm_, warming_) : ncclRecv(t, 1, ncclUint8, 0, comm_, warming_);
    } else {
      result = ncclAllReduce(t, t, 1, ncclInt32, ncclMax, comm_, warming_);
      result = first_error(result, ncclBroadcast(t, t, 1, ncclInt32, 0, comm_, warming_));
    }
    check_nccl(first_error(result, ncclGroupEnd()), "the first call of NCCL", comm_);
  }

  void all_reduce(const Tensor& t, ReduceOp op, Stream& s) override {
    s.uses({t});
    call("ncclAllReduce", s, [&](cudaStream_t stream) {
      return ncclAllReduce(t.data(), t.data(), count(t), type_of(t.dtype()), operation_of(op), comm_, stream);
    });
  }
  void all_gather(const Tensor& out, const Tensor& in, Stream& s) override {
    s.uses({out, in});
    call("ncclAllGather", s, [&](cudaStream_t stream) {
      return ncclAllGather(in.data(), out.data(), count(in), type_of(in.dtype()), comm_, stream);
    });
  }
  void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) override {
    s.uses({out, in});
    call("ncclReduceScatter", s, [&](cudaStream_t stream) {
      return ncclReduceScatter(in.data(), out.data(), count(out), type_of(in.dtype()), operation_of(op), comm_, stream);
    });
  }
  void broadcast(const Tensor& t, int root, Stream& s) override {
    s.uses({t});
    call("ncclBroadcast", s, [&](cudaStream_t stream) {
      return ncclBroadcast(t.data(), t.data(), count(t), type_of(t.dtype()), root, comm_, stream);
    });
  }
  void reduce(const Tensor& t, ReduceOp op, int root, Stream& s) override {
    s.uses({t});
    call("ncclReduce", s, [&](cudaStream_t stream) {  // t is written on root only
      return ncclReduce(t.data(), t.data(), count(t), type_of(t.dtype()), operation_of(op), root, comm_, stream);
    });
  }
  void transfer(std::span<const Transfer> transfers, Stream& s) override {
    // What is sent lies in one tensor's memory, what is received in another's: said in one call, as uses() asks.
    Tensor sent, received;
    for (const Transfer& t : transfers) {
      (t.way == Transfer::send ? sent : received) = t.tensor;
    }
    sent.defined() && received.defined() ? s.uses({sent, received}) : s.uses({sent.defined() ? sent : received});
    call("ncclSend and ncclRecv", s, [&](cudaStream_t stream) {
      check_nccl(ncclGroupStart(), "ncclGroupStart", comm_);
      ncclResult_t result = ncclSuccess;
      for (const Transfer& t : transfers) {
        const ncclDataType_t type = type_of(t.tensor.dtype());
        const ncclResult_t one = t.way == Transfer::send
                                     ? ncclSend(t.tensor.data(), count(t.tensor), type, t.peer, comm_, stream)
                                     : ncclRecv(t.tensor.data(), count(t.tensor), type, t.peer, comm_, stream);
        result = first_error(result, one);
      }
      return first_error(result, ncclGroupEnd());  // in any case: the group is this thread's
    });
  }

  void close() override {
    const std::lock_guard lock(shared_->mutex);
    require_open();
    use_gpu();
    closing_ = true;
    check_nccl(ncclCommFinalize(comm_), "ncclCommFinalize", comm_);
  }

  void abort() noexcept override {
    const std::lock_guard lock(shared_->mutex);
    cudaSetDevice(shared_->gpu);
    abort_locked();
  }
  // REQUIRES: the mutex is held.
  void abort_locked() noexcept {
    if (comm_ != nullptr) {
      ncclCommAbort(comm_);
      comm_ = nullptr;
    }
  }

 private:
  void require_open() const { require(comm_ != nullptr, "this connection was aborted"); }
  void use_gpu() const { check_cuda(cudaSetDevice(shared_->gpu), "cudaSetDevice"); }

  template <class Give>
  void call(const char* name, Stream& s, Give give) {
    const cudaStream_t stream = stream_of(s);
    const std::lock_guard lock(shared_->mutex);
    require_open();
    use_gpu();
    check_nccl(give(stream), name, comm_);
  }

  void end_warm_up() {
    if (warming_ != nullptr) {
      static_cast<void>(cudaStreamDestroy(warming_));
      warming_ = nullptr;
    }
  }

  std::shared_ptr<Shared> shared_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t warming_ = nullptr;  // of warm_up, until it is done
  bool sends_ = false;              // in a connection for messages
  bool closing_ = false;
};

class NcclLibrary final : public NcclApi {
 public:
  NcclLibrary() {
    int gpus = 0;
    const cudaError_t status = cudaGetDeviceCount(&gpus);
    require(
        status == cudaSuccess && gpus > 0,
        "NCCL needs a GPU and its driver on every machine, found none on this one ({}). Write communicator = \"local\" "
        "or \"mpi\" under [run] to train without",
        status == cudaSuccess ? "0 devices" : cudaGetErrorString(status));
  }

  // The device has chosen the GPU of this rank's thread (core/device/cuda/cuda_device.cu); the same one here.
  std::string use_gpu() override {
    const std::lock_guard lock(shared_->mutex);
    check_cuda(cudaGetDevice(&shared_->gpu), "cudaGetDevice");
    if (shared_->scratch == nullptr) {
      check_cuda(cudaMalloc(&shared_->scratch, scratch_bytes), "cudaMalloc");
      check_cuda(cudaMemset(shared_->scratch, 0, scratch_bytes), "cudaMemset");
    }
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, shared_->gpu), "cudaGetDeviceProperties");
    std::string uuid;
    for (const char byte : properties.uuid.bytes) {
      uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    return fmt::format("{} of {} ({}, uuid {})", shared_->gpu, host, properties.name, uuid);
  }

  ConnectionId new_id() override {
    ncclUniqueId unique{};
    const std::lock_guard lock(shared_->mutex);
    check_nccl(ncclGetUniqueId(&unique), "ncclGetUniqueId");
    ConnectionId id{};
    std::copy(std::begin(unique.internal), std::end(unique.internal), id.begin());
    return id;
  }

  std::unique_ptr<NcclConnection> connect(const ConnectionId& id, int size, int rank) override {
    return std::make_unique<LibraryConnection>(shared_, id, size, rank);
  }

  // In a group NCCL first tells the kernels of all of them to end, and frees memory at the group's end.
  void abort_all() noexcept override {
    const std::lock_guard lock(shared_->mutex);
    cudaSetDevice(shared_->gpu);
    ncclGroupStart();
    for (LibraryConnection* connection : shared_->connections) {
      connection->abort_locked();
    }
    ncclGroupEnd();
  }

 private:
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

std::shared_ptr<NcclApi> make_nccl_library() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion");
  require(
      version >= NCCL_VERSION(2, 27, 0),
      "the NCCL that is loaded here has version code {}: 2.27 or newer is needed (LD_LIBRARY_PATH may name another)",
      version);
  return std::make_shared<NcclLibrary>();
}

}  // namespace orthant::nccl
