// The products of experts some of whose weights are in the host's memory (ParamGroup::on_host): the rows of those go
// there and their results come back, while the device computes the rows of the others.
#pragma once

#include <orthant/param_group.h>

#include <initializer_list>
#include <memory>

#include "core/device/forwarding_stream.h"

namespace orthant {

// The main stream, but for grouped_gemm with weights of the group.
class HostRowsStream final : public ForwardingStream {
 public:
  // REQUIRES: group.on_host; both outlive this.
  HostRowsStream(Stream& main, ParamGroup& group) : main_(main), group_(group) {}

  Device& device() const override { return main_.device(); }
  std::shared_ptr<Event> record() override { return main_.record(); }
  void wait(const std::shared_ptr<Event>& event) override { main_.wait(event); }
  void host(std::function<void()> work) override { main_.host(std::move(work)); }
  void synchronize() override { main_.synchronize(); }

  // b: of the group's weights, whole experts that follow each other; the rows are theirs.
  void grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) override;

 protected:
  void forward(const char* /*name*/, std::initializer_list<Tensor> /*tensors*/, Operation operation) override {
    operation(main_);
  }

 private:
  Stream& main_;
  ParamGroup& group_;
};

}  // namespace orthant
