// Slot: the place of one tensor outside of the device: host memory, or a range of a scratch file.
//
// A slot is open or closed. While it is open its bytes are in host memory. That of a slot in host memory stays there;
// that of a slot on disk is read when it is opened, and written when it is closed after a change. All of it is
// enqueued: events say when it is done.
//
// Thread safety: that of Lanes.
#pragma once

#include <memory>

#include "lanes.h"

namespace orthant::offload {

class Slot {
 public:
  // Room in host memory is taken here, room on disk must have been reserved. In a plan (Device::holds_data is false)
  // nothing is written anywhere.
  Slot(Lanes& lanes, Place place, DType dtype, std::int64_t elements);

  // Opens it, if it is closed, and begins to read it. Its bytes are there behind ready().
  const Tensor& open();
  // Opens it without its bytes: all that is read later must be written first.
  const Tensor& open_empty();
  // Null: they are there.
  const std::shared_ptr<Event>& ready() const { return ready_; }
  // Whoever writes to the tensor is done behind `done`. Call it before the slot is closed.
  void changed(std::shared_ptr<Event> done);
  // Whoever reads from the tensor is done behind `done`: it is not changed or opened anew before.
  void close();
  // Null: nothing is on its way to the disk. Otherwise behind it the host's memory of a slot on disk is free.
  const std::shared_ptr<Event>& written() const { return written_; }
  // Its room on disk is for others, once what was enqueued is done. The slot is not used again.
  void give_back();

  DType dtype() const { return dtype_; }
  std::int64_t elements() const { return elements_; }
  std::int64_t bytes() const { return elements_ * static_cast<std::int64_t>(size_of(dtype_)); }

 private:
  Tensor staging() const;

  Lanes* lanes_;
  Place place_;
  DType dtype_;
  std::int64_t elements_;
  ScratchSpace::Range range_;
  Tensor tensor_;
  bool dirty_ = false;
  std::shared_ptr<Event> ready_, written_;
};

}  // namespace orthant::offload
