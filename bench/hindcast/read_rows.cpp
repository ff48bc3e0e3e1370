#include <filesystem>

#include <orthant/error.h>

#include "bench/hindcast/row_parts.h"

namespace orthant::hindcast {

Rows read_rows(const std::string& path, const std::string& data) {
  const CsvFile file = read_csv(path);
  if (file.has("iteration time (ms)")) {
    return read_vtrain(file);
  }
  if (file.has("mem_max_bytes") && file.has("case")) {
    return read_golden(file);
  }
  if (file.has("System") && file.has("Model")) {
    return read_bridge(file, read_cards((std::filesystem::path(data) / "models.csv").string()));
  }
  require(
      file.has("metric") && file.has("value") && file.has("gpu"),
      "{}: these columns are of none of the four kinds of files; write those of core.csv (gpu, n, L, h, ..., metric, "
      "value), or of a vTrain, golden or recipes file (bench/hindcast/README.md)",
      path);
  return read_core(file);
}

}  // namespace orthant::hindcast
