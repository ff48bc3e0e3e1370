#include "slot.h"

#include <utility>

namespace orthant::offload {

Slot::Slot(Lanes& lanes, Place place, DType dtype, std::int64_t elements)
    : lanes_(&lanes), place_(place), dtype_(dtype), elements_(elements) {
  require(place != Place::device, "a slot is outside of the device");
  if (place == Place::host) {
    tensor_ = lanes.device.host_empty(dtype, {elements});
  } else {
    range_ = lanes.space.take(bytes());
    written_ = range_.free;
  }
}

void Slot::give_back() {
  if (range_.bytes > 0) {
    range_.free = lanes_->reads->record();
    lanes_->space.give_back(std::move(range_));
  }
}

// Its bytes begin and end with pages of the file.
Tensor Slot::staging() const {
  const std::int64_t room = aligned_up(bytes()) + file_alignment;
  const Tensor raw = lanes_->device.host_empty(DType::u8, {room});
  const std::size_t address = reinterpret_cast<std::uintptr_t>(raw.data());
  const std::size_t alignment = static_cast<std::size_t>(file_alignment);
  const std::size_t skip = (alignment - address % alignment) % alignment;
  return Tensor(raw.storage(), skip, dtype_, {elements_});
}

const Tensor& Slot::open_empty() {
  if (!tensor_.defined()) {
    tensor_ = staging();
    ready_ = nullptr;
  }
  return tensor_;
}

const Tensor& Slot::open() {
  if (tensor_.defined()) {
    return tensor_;
  }
  open_empty();
  lanes_->traffic.read += bytes();
  if (written_ != nullptr) {
    lanes_->reads->wait(written_);
  }
  if (lanes_->device.holds_data()) {
    lanes_->reads->host([tensor = tensor_, range = range_, bytes = aligned_up(bytes()), &device = lanes_->device] {
      const auto view = device.host_view(tensor, Access::write);
      range.file->read(range.offset, view->data(), bytes)->wait();
    });
  } else {
    lanes_->reads->fill(tensor_, 0);  // a plan counts it as long as it may be there
  }
  ready_ = lanes_->reads->record();
  lanes_->began_to_read(ready_);
  return tensor_;
}

void Slot::changed(std::shared_ptr<Event> done) {
  ready_ = std::move(done);
  dirty_ = true;
}

void Slot::close() {
  const bool dirty = std::exchange(dirty_, false);
  if (place_ == Place::host || !tensor_.defined()) {
    return;
  }
  const Tensor tensor = std::exchange(tensor_, Tensor());
  const std::shared_ptr<Event> ready = std::exchange(ready_, nullptr);
  if (!dirty) {
    return;
  }
  lanes_->traffic.written += bytes();
  if (ready != nullptr) {
    lanes_->writes->wait(ready);
  }
  if (written_ != nullptr) {
    lanes_->writes->wait(written_);  // or who had the range before has read it
  }
  if (lanes_->device.holds_data()) {
    lanes_->writes->host([tensor, range = range_, bytes = aligned_up(bytes()), &device = lanes_->device] {
      const auto view = device.host_view(tensor, Access::read);
      range.file->write(range.offset, view->data(), bytes)->wait();
    });
  } else {
    lanes_->writes->fill(tensor, 0);
  }
  written_ = lanes_->writes->record();
  lanes_->began_to_write(written_);
}

}  // namespace orthant::offload
