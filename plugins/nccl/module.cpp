// The module's entry: the nccl communicator over NCCL itself.
#include <orthant/module.h>

#include <cstdlib>

#include "nccl_communicator.h"
#include "nccl_library.h"
#include "start.h"

namespace orthant::nccl {
namespace {

std::unique_ptr<Communicator> make(const CommunicatorConfig& config) {
  const auto environment = [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  };
  std::shared_ptr<NcclApi> library = make_nccl_library();  // first: nothing else matters where there is no GPU
  return make_nccl_communicator(std::move(library), rendezvous_config(config, environment));
}

}  // namespace
}  // namespace orthant::nccl

ORTHANT_COMMUNICATOR_FOR("nccl", "cuda", orthant::nccl::make)
