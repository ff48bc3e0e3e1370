// TurnedWeights: the main stream of a model that is only read, whose experts' weights lie turned for products of few
// rows.
//
// A token or two an expert wait for the weights' memory alone; in their own layout they would be packed anew in each
// pass. Bits stay: an element is the same sum (experts/cpu/block_gemm.h). Costs the memory of the experts' weights a
// second time. Thread safety: none.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>

#include "core/device/forwarding_stream.h"

namespace orthant {

class TurnedWeights final : public ForwardingStream {
 public:
  // `inner` is a stream of the CPU. REQUIRES: weights that grouped_gemm is given never change afterwards.
  explicit TurnedWeights(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  Device& device() const override { return inner_->device(); }
  std::shared_ptr<Event> record() override { return inner_->record(); }
  void wait(const std::shared_ptr<Event>& event) override { inner_->wait(event); }
  void host(std::function<void()> work) override { inner_->host(std::move(work)); }
  void synchronize() override { inner_->synchronize(); }

  void grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) override;

 protected:
  void forward(const char* /*name*/, std::initializer_list<Tensor> /*tensors*/, Operation operation) override {
    operation(*inner_);
  }

 private:
  std::unique_ptr<Stream> inner_;
  std::map<const void*, Tensor> turned_;  // [E, k, n], by the place of [E, n, k]
};

}  // namespace orthant
