// TurnedWeights: the main stream of a model that is only read, whose experts' weights lie turned for products of few
// rows.
//
// A token or two an expert wait for the weights' memory alone; in their own layout they would be packed anew in each
// pass. They are turned where they lie, so they take their memory once. Bits stay: an element is the same sum
// (experts/cpu/block_gemm.h). What another operation reads is turned back before it, and stays so. Thread safety: none.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>

#include "core/device/forwarding_stream.h"

namespace orthant {

class TurnedWeights final : public ForwardingStream {
 public:
  // `inner` is a stream of the CPU. REQUIRES: weights that grouped_gemm is given never change afterwards, and only
  // operations of this stream read them.
  explicit TurnedWeights(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  Device& device() const override { return inner_->device(); }
  std::shared_ptr<Event> record() override { return inner_->record(); }
  void wait(const std::shared_ptr<Event>& event) override { inner_->wait(event); }
  void host(std::function<void()> work) override { inner_->host(std::move(work)); }
  void synchronize() override { inner_->synchronize(); }

  void grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) override;

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;

 private:
  struct Known {
    Tensor weights;  // [E, n, k]; turned, the bytes are those of [E, k, n]
    bool turned = true;
  };
  using Place = std::map<const std::byte*, Known>::iterator;
  // The first of the known that shares a byte with `t`.
  Place meeting(const Tensor& t);
  bool lies_turned(const Tensor& b);
  void turn_back(const Tensor& t);

  std::unique_ptr<Stream> inner_;
  std::map<const std::byte*, Known> known_;  // by the first byte; none overlaps another
};

}  // namespace orthant
