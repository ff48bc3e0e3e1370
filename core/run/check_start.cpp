#include "core/run/check_start.h"

#include "core/cpu/make_device.h"
#include "core/data/source.h"
#include "core/layout.h"
#include "core/run/rank.h"

namespace orthant {
namespace {

template <class Attempt>
void attempt(const Config& config, const char* setting, const char* advice, Diagnostics& refused, Attempt open) {
  try {
    open();
  } catch (const Error& error) {
    refused.add(config.tables.empty() ? "default" : config.origin(setting), error.what(), advice);
  }
}

}  // namespace

int check_start(const Config& config) {
  const Settings& settings = config.settings;
  const int world_size = check_layout(config);
  Diagnostics refused = config.diagnostics();
  attempt(config, "run.device", "write \"cpu\"", refused, [&] { check_device(settings.run.device); });
  if (settings.run.graphs && !config.plugins.empty()) {
    refused.add(config.origin("run.graphs"),
                "run.graphs = true records the work of one rank by itself, but the configuration has plugins",
                "leave out run.graphs, or the [plugins.*] tables");
  }
  const char* other_communicator = settings.run.communicator == "local"
                                       ? "write \"mpi\", or make the layout smaller"
                                       : "write \"local\", or give the communicator what it needs";
  attempt(config, "run.communicator", other_communicator, refused,
          [&] { check_communicator(settings.run.communicator, settings.run.device, world_size); });
  attempt(config, settings.data.source == DataSource::synthetic ? "data.source" : "data.path", "", refused,
          [&] { make_batch_source(settings); });
  refused.throw_if_any();
  return world_size;
}

}  // namespace orthant
