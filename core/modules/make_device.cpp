// make_device: the devices on the CPU are built in, any other name is a module found at run time.
#include "core/modules/make_device.h"

#include <orthant/device.h>

#include "core/modules/module.h"

namespace orthant {
namespace {

Module device_module(const std::string& name) {
  try {
    return find_module("device", name);
  } catch (const ConfigError& refused) {
    if (module_exists("device", name)) {
      throw;  // it is there, and what is wrong with it has been said
    }
    throw ConfigError(fmt::format(
        "device \"{}\" is not available. \"cpu\", \"guarded\", \"late\" and \"late_sides\" are built in; {}", name,
        refused.what()));
  }
}

}  // namespace

void check_device(const std::string& name) {
  if (name == "cpu" || name == "guarded" || name == "late" || name == "late_sides") {
    return;
  }
  const std::string refusal = refusal_of(device_module(name));
  if (!refusal.empty()) {
    throw ConfigError(refusal);
  }
}

std::unique_ptr<Device> make_device(const std::string& name, int threads, bool deterministic) {
  if (name == "cpu") {
    return make_cpu_device(threads);
  }
  if (name == "guarded") {
    return make_guarded_device(threads);
  }
  if (name == "late" || name == "late_sides") {
    return make_late_device(name == "late" ? Late::main_streams : Late::side_streams, threads);
  }
  const DeviceConfig config{threads, deterministic};
  return std::unique_ptr<Device>(static_cast<Device*>(create_object(device_module(name), &config)));
}

}  // namespace orthant
