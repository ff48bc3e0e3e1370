// Sentences about an experiment, from its resolved configuration: what a paper's section on methods would say.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/report/page.h"
#include "apps/report/run_data.h"

namespace orthant::report {

// One paragraph. It says only what the settings say; "" where there are none.
std::string methods_of(const FlatSettings& settings, std::optional<double> parameters,
                       std::optional<double> active_parameters, std::optional<double> flops_per_token);

// The settings that are not the same in all runs, one row a setting; a run without it has an empty cell. Names and
// folders are left out.
Grid differences(const std::vector<RunData>& runs);

}  // namespace orthant::report
