// OffloadStash: activations wait for their backward pass in the host's memory or on disk.
//
// What put brings is copied while the forward pass goes on; what is taken next is fetched while the backward pass goes
// on. begin_step tells the order of all calls, so nothing is guessed: what is taken soon after it is put stays on the
// device. Source: Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network
// Design", MICRO 2016.
#pragma once

#include <orthant/seams.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lanes.h"
#include "slot.h"

namespace orthant::offload {

class OffloadStash final : public Stash {
 public:
  OffloadStash(Place place, std::shared_ptr<Lanes> lanes) : place_(place), lanes_(std::move(lanes)) {}

  void begin_step(std::span<const StashCall> calls, Stream& s) override;
  void put(int layer, int micro_batch, Saved saved, Stream& s) override;
  Saved take(int layer, int micro_batch, Stream& s) override;

 private:
  using At = std::pair<int, int>;  // layer, micro-batch
  struct Piece {
    std::size_t index;  // among the saved tensors
    Shape shape;
    DType dtype;
    Slot slot;
    Tensor fetched;
  };
  struct Away {
    std::vector<Piece> pieces;
    std::shared_ptr<Event> fetched;
  };
  void fetch(const At& at);

  static constexpr std::size_t ahead = 1;           // layers that are fetched before they are asked for
  static constexpr std::size_t least_bytes = 4096;  // smaller tensors stay

  Place place_;
  std::shared_ptr<Lanes> lanes_;
  std::deque<At> takes_;     // to come, in order
  std::map<At, bool> soon_;  // taken so soon after it is put that it stays
  std::map<At, Away> away_;
  std::deque<std::shared_ptr<Event>> leaving_;
};

}  // namespace orthant::offload
