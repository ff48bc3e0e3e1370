#include "core/train/whole_gradients.h"

#include <algorithm>

#include "core/plan/keeper_chain.h"

namespace orthant {

std::vector<float> to_host(Tensor values, Stream& stream) {
  if (values.dtype() != DType::f32) {
    Device& device = stream.device();
    const Tensor wide =
        values.on_host() ? device.host_empty(DType::f32, values.shape()) : device.empty(DType::f32, values.shape());
    stream.cast(wide, values);
    values = wide;
  }
  std::vector<float> host(values.elements());
  stream.download(host.data(), values);
  return host;
}

void place_piece(std::vector<float>& global, const Shape& shape, const OwnedPiece& piece,
                 const std::vector<float>& part) {
  const std::int64_t columns = shape.rank() > 1 ? shape[1] : 1;
  global.resize(shape.elements());
  for (std::int64_t r = 0; r < piece.size[0]; ++r) {
    std::copy_n(part.begin() + r * piece.size[1], piece.size[1],
                global.begin() + (piece.offset[0] + r) * columns + piece.offset[1]);
  }
}

void add_gradients(Trainer& trainer, KeeperChain& keepers, Stream& stream, std::int64_t step, bool first_worker,
                   WholeTensors& to) {
  for (const auto& group : trainer.parameters().groups()) {
    if (group->frozen) {
      continue;
    }
    with_held(keepers, *group, Held::whole_grad, {.stream = stream, .step = step}, [&](Stream& home) {
      for (const Param& p : group->params) {
        for (const OwnedPiece& piece : owned_pieces(*group, p)) {
          if (p.counted && group->owner && first_worker && !p.spec.frozen) {
            place_piece(to[p.spec.name], p.spec.global, piece,
                        to_host(group->owned_grad.slice(piece.begin, {piece.elements()}), home));
          }
        }
      }
    });
  }
}

}  // namespace orthant
