// The CUDA device's Stream: every operation, each implemented in the file of its name (norm.cu, attention.cu, ...), the
// router's in router/cuda/, the experts' in experts/cuda/.
#pragma once

#include <cuda_runtime.h>

#include <orthant/ops.h>

#include <array>
#include <memory>

#include "core/cuda/cuda_device.h"
#include "core/cuda/graphs.h"
#include "core/cuda/staging.h"

namespace orthant::cuda {

class Cublas;
class CudnnAttention;

// Operations are enqueued and return; failures of kernels show up where the host waits. This class is the main stream,
// and what a side stream (side_stream.h) hands its operations to.
class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, cudaStream_t stream);
  ~CudaStream() override;

  Device& device() const override { return device_; }
  void* native() const override { return stream_; }
  std::shared_ptr<Event> record() override;
  void wait(const std::shared_ptr<Event>& event) override;
  void host(std::function<void()> work) override;
  void synchronize() override;
  // As a CUDA graph, from the second call on: graphs.h.
  void together(const std::function<void()>& work) override;
  void copy(const Tensor& to, const Tensor& from) override;
  void cast(const Tensor& to, const Tensor& from) override;
  void fill(const Tensor& t, double value) override;
  void upload(const Tensor& to, const void* host) override;
  void download(void* host, const Tensor& from) override;
  void copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) override;
  void swap_outer(const Tensor& to, const Tensor& from) override;
  void add(const Tensor& y, const Tensor& x) override;
  void scale(const Tensor& y, float a) override;
  void sum_squares(const Tensor& out, const Tensor& x) override;
  void sum(const Tensor& out, const Tensor& x) override;
  void init_normal(const Tensor& w, const RandomKey& key, float std, const SliceMap& at) override;
  void dropout(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float p,
               const SliceMap& at) override;
  void jitter(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float e) override;
  void gemm(const Tensor& c, const Tensor& a, const Tensor& b, Gemm how) override;
  void grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) override;
  void grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, float beta) override;
  void norm(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& weight, const Tensor& bias,
            NormKind kind, float eps) override;
  void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                     const Tensor& stats, const Tensor& weight, NormKind kind) override;
  void split_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv, const Tensor& position,
                    const RotaryShape& shape) override;
  void merge_rotary_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                             const Tensor& position, const RotaryShape& shape) override;
  void attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& first, const AttentionShape& shape) override;
  void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o, const Tensor& q,
                          const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& first,
                          const AttentionShape& shape) override;
  void attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                       const AttentionShape& shape) override;
  void attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block, const Tensor& lse_block,
                       const AttentionShape& shape) override;
  void attention_block_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                                const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                                const AttentionShape& shape) override;
  void activation(const Tensor& a, const Tensor& h, Activation kind) override;
  void activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) override;
  void weighted_activation_backward(const Tensor& dh, const Tensor& a, const Tensor& dweight, const Tensor& da,
                                    const Tensor& h, const Tensor& weight, const Tensor& source,
                                    Activation kind) override;
  void embedding(const Tensor& y, const Tensor& table, const Tensor& id, bool accumulate,
                 std::int64_t first_row) override;
  void embedding_backward(const Tensor& dtable, const Tensor& dy, const Tensor& id, std::int64_t first_row) override;
  void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) override;
  void cross_entropy_stats(const Tensor& stats, const Tensor& logits, const Tensor& label,
                           std::int64_t first_column) override;
  void cross_entropy_from_stats(const Tensor& loss, const Tensor& logits, const Tensor& label, const Tensor& stats,
                                std::int64_t first_column, float scale) override;
  void gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
            const Tensor& logits, const Tensor& valid, const Tensor& token, const RandomKey& key,
            const GateConfig& config) override;
  void dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                     const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                     const GateConfig& config) override;
  void keep_seated(const Tensor& expert, const Tensor& row) override;
  void pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source) override;
  void pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate) override;
  void combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight, bool accumulate) override;
  void combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy, const Tensor& rows,
                        const Tensor& row, const Tensor& source, const Tensor& weight) override;
  void expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in, const Tensor& w_out,
                  const Dispatch& dispatch, Activation kind) override;
  void expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in, const Tensor& dw_out,
                           const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in, const Tensor& w_out,
                           const Dispatch& dispatch, Activation kind, float beta) override;
  void gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert, const Tensor& lse,
                     const Tensor& chosen, const Tensor& logits, const Tensor& valid, float aux_scale, float z_scale,
                     const GateConfig& config) override;
  void gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen, const Tensor& share,
                   const Tensor& lse, const GateConfig& config) override;
  void adamw(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v, const Tensor& grad,
             const Tensor& factor, const AdamW& how) override;
  void sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad, const Tensor& factor,
           const Sgd& how) override;
  void clip_factor(const Tensor& factor, const Tensor& sum_squares, const Tensor& loss, float max_norm) override;

  cudaStream_t handle() const { return stream_; }
  CudaDevice& cuda() const { return device_; }

  // Uninitialised device memory for the operation that asks, aligned to 256 bytes: what a later operation of this
  // stream writes there comes after it. One buffer a slot (0 to 3); grows, and is kept. (Tensors of `device()` serve as
  // well: what an operation allocates and drops is reused in this stream's order.)
  void* scratch(int slot, std::size_t bytes);

  // Between the host's memory and the device's, in this stream's order. The first returns at once, and the host's bytes
  // may change then; the second waits for the stream.
  void to_device(void* to, const void* host, std::size_t bytes);
  void to_host(void* host, const void* from, std::size_t bytes);

 private:
  CudaDevice& device_;
  cudaStream_t stream_;
  std::array<Tensor, 4> scratch_;
  std::shared_ptr<Cublas> cublas_;                   // from the first product on
  std::shared_ptr<CudnnAttention> cudnn_attention_;  // from the first attention that fits on
  Uploads uploads_;
  Graphs graphs_;
};

}  // namespace orthant::cuda
