#include "stash.h"

namespace orthant::offload {

void OffloadStash::begin_step(std::span<const StashCall> calls, Stream& s) {
  for (auto& [at, away] : away_) {  // of a step that failed
    for (Piece& piece : away.pieces) {
      piece.slot.give_back();
    }
  }
  away_.clear();
  leaving_.clear();
  takes_.clear();
  soon_.clear();
  std::map<At, std::size_t> put;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const At at{calls[i].layer, calls[i].micro_batch};
    if (calls[i].kind == StashCall::Kind::put) {
      put[at] = i;
    } else {
      takes_.push_back(at);
      soon_[at] = i - put.at(at) <= 2 * ahead + 1;
    }
  }
  next().begin_step(calls, s);
}

void OffloadStash::put(int layer, int micro_batch, Saved saved, Stream& s) {
  const At at{layer, micro_batch};
  if (!soon_.at(at)) {
    lanes_->down->wait(s.record());
    std::vector<Piece>& pieces = away_[at].pieces;
    for (std::size_t i = 0; i < saved.tensors.size(); ++i) {
      Tensor& t = saved.tensors[i];
      if (!t.defined() || t.bytes() < least_bytes) {
        continue;
      }
      Piece piece{i, t.shape(), t.dtype(), Slot(*lanes_, place_, t.dtype(), t.elements()), {}};
      lanes_->down->download(piece.slot.open_empty(), t);
      lanes_->traffic.to_host += static_cast<std::int64_t>(t.bytes());
      piece.slot.changed(lanes_->down->record());
      piece.slot.close();
      pieces.push_back(std::move(piece));
      t = {};
    }
    // The memory of the device, and of the host where it goes on to the disk, is free when the copies are done: the
    // rank does not run far ahead of that.
    leaving_.push_back(place_ == Place::nvme ? lanes_->writes->record() : lanes_->down->record());
    if (leaving_.size() > ahead + 1) {
      leaving_.front()->wait();
      leaving_.pop_front();
    }
  }
  next().put(layer, micro_batch, std::move(saved), s);  // the rest
}

// Starts the copies back, once, if it was put already.
void OffloadStash::fetch(const At& at) {
  const auto found = away_.find(at);
  if (found == away_.end() || found->second.fetched != nullptr) {
    return;
  }
  const MemoryScope as(lanes_->device, MemoryKind::activations);
  for (Piece& piece : found->second.pieces) {
    const Tensor& host = piece.slot.open();
    if (piece.slot.ready() != nullptr) {
      lanes_->up->wait(piece.slot.ready());
    }
    piece.fetched = lanes_->device.empty(piece.dtype, piece.shape);
    lanes_->up->upload(piece.fetched, host);
    lanes_->traffic.to_device += static_cast<std::int64_t>(host.bytes());
    piece.slot.close();
    piece.slot.give_back();
  }
  found->second.fetched = lanes_->up->record();
}

Saved OffloadStash::take(int layer, int micro_batch, Stream& s) {
  Saved saved = next().take(layer, micro_batch, s);
  for (std::size_t i = 0; i <= ahead && i < takes_.size(); ++i) {
    fetch(takes_[i]);
  }
  takes_.pop_front();
  if (auto away = away_.extract({layer, micro_batch})) {
    s.wait(away.mapped().fetched);
    for (Piece& piece : away.mapped().pieces) {
      saved.tensors[piece.index] = std::move(piece.fetched);
    }
  }
  return saved;
}

}  // namespace orthant::offload
