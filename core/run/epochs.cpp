#include "core/run/epochs.h"

#include <orthant/error.h>
#include <orthant/learning_rate.h>

#include "core/config/kinds.h"
#include "core/data/source.h"

namespace orthant {

bool resolve_epochs(Config& config, bool may_write) {
  Settings& settings = config.settings;
  const double epochs = settings.run.epochs;
  if (epochs <= 0) {
    return true;
  }
  const std::optional<OpenedSize> opened = data_size(settings, may_write);
  if (!opened.has_value()) {
    return false;
  }
  if (!opened->size.has_value()) {
    throw SettingError("run.epochs",
                       fmt::format("[run] epochs: {} has no end, so it has no epochs; write run.steps", opened->name));
  }
  settings.run.steps = steps_of_epochs(settings.batch, epochs, opened->size->sequences);
  settings.run.epochs = 0;
  set_entry(config, "run", "steps", settings.run.steps,
            fmt::format("run.epochs = {} of {} sequences", epochs, opened->size->sequences));
  set_entry(config, "run", "epochs", 0.0);
  settings.catalogue->get<LearningRate>(settings.optimizer.schedule).check(settings.optimizer, settings.run.steps);
  return true;
}

std::string data_text(const Settings& settings) {
  const std::optional<OpenedSize> opened = data_size(settings, false);
  return opened.has_value() && opened->size.has_value() ? size_text(*opened->size, settings) : "";
}

}  // namespace orthant
