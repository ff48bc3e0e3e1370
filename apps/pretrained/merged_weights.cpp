#include "apps/pretrained/merged_weights.h"

#include "core/arch/trained.h"

namespace orthant {
namespace {

std::vector<float> read_whole(const CheckpointReader& reader, const std::string& name, std::int64_t rows,
                              std::int64_t columns) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  reader.read(name, {0, 0}, {rows, columns}, values.data());
  return values;
}

}  // namespace

void read_merged(const CheckpointReader& reader, const Settings& settings, const std::string& name,
                 const std::vector<std::int64_t>& shape, float* out) {
  reader.read(name, std::vector<std::int64_t>(shape.size(), 0), shape, out);
  const LoraSettings& lora = settings.lora;
  if (lora.rank == 0 || !reader.has(adapter_name(name, 'A'))) {
    return;
  }
  const std::int64_t rows = shape.at(0), columns = shape.at(1), rank = lora.rank_for(name);
  const double scale = lora.scale_for(name);
  const std::vector<float> a = read_whole(reader, adapter_name(name, 'A'), rank, columns);
  const std::vector<float> b = read_whole(reader, adapter_name(name, 'B'), rows, rank);
  std::vector<double> row(static_cast<std::size_t>(columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    row.assign(row.size(), 0);
    for (std::int64_t k = 0; k < rank; ++k) {
      const double factor = scale * b[static_cast<std::size_t>(i * rank + k)];
      for (std::int64_t j = 0; j < columns; ++j) {
        row[static_cast<std::size_t>(j)] += factor * a[static_cast<std::size_t>(k * columns + j)];
      }
    }
    for (std::int64_t j = 0; j < columns; ++j) {
      float& w = out[i * columns + j];
      w = static_cast<float>(w + row[static_cast<std::size_t>(j)]);
    }
  }
}

}  // namespace orthant
