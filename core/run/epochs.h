// run.epochs, in steps.
#pragma once

#include <string>

#include "core/config/config.h"

namespace orthant {

// Where run.epochs is above 0: run.steps becomes the steps that read the data so often, and run.epochs 0, so that all
// else knows steps alone; config.resolved.toml says where they come from. The same on every rank and in every layout.
// may_write: as for check_batch_source; without it nothing changes where a file would have to be written first, and
// false is returned. Errors: SettingError for data without an end, and for a schedule that these steps do not fit;
// ConfigError as for opening the data.
bool resolve_epochs(Config& config, bool may_write);

// size_text of the data, for commands that start nothing. Empty where it has no end, or a file would have to be written
// first. REQUIRES: check_start has found nothing wrong.
std::string data_text(const Settings& settings);

}  // namespace orthant
