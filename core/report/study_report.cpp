#include <orthant/error.h>

#include "core/report/report.h"

namespace orthant {

void write_study_report(const std::filesystem::path& study_folder) {
  throw ConfigError("'" + study_folder.string() + "': reports of studies are not written yet");
}

}  // namespace orthant
