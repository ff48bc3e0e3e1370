// Checks of what train.freeze, train.train_only, [lora], optimizer.lr_of and optimizer.no_decay name.
#pragma once

#include <orthant/settings.h>

namespace orthant {

// REQUIRES: the settings' parts are known. Errors: SettingError for a pattern that names no parameter of the model (for
// lora.targets: no matrix), with names near to it; for a pattern of lr_of that earlier ones leave nothing; where
// nothing is left to train; and for keys of [lora] that do not fit together.
void check_trained(const Settings& settings);

}  // namespace orthant
