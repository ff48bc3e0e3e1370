// What the readers of several files share. Internal to this folder.
#pragma once

#include <functional>
#include <string>

#include "bench/hindcast/csv.h"
#include "bench/hindcast/row.h"

namespace orthant::hindcast {

Rows read_core(const CsvFile& file);
Rows read_vtrain(const CsvFile& file);
Rows read_golden(const CsvFile& file);
Rows read_bridge(const CsvFile& file, const Cards& cards);

// "A100-80", "DGX-GB200": the name of a machine file; empty for what none is known of.
std::string machine_of(const std::string& gpu);

// "tp 8 pp 2 dp 4 mbs 1"; what is 1 is left out.
std::string layout_label(const cost::Layout& layout);

// Adds the row once `fill` has filled it; where that fails, the row as not scored, and why.
void add_row(Rows& rows, Row row, const std::function<void(Row&)>& fill);

// Ranks that share one expert, where the source does not say: those of the tensor group, as far as they divide a stage.
int unstated_expert_tensor(const cost::Layout& layout);

std::string lower_case(std::string text);

}  // namespace orthant::hindcast
