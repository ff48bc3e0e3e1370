// The tables that the field began with, each made again by the model of time and memory beside the published numbers.
//
// Thread safety: pure functions on files.
#pragma once

#include <string>
#include <vector>

namespace orthant::tables {

struct Table {
  std::string name;   // as the command takes it
  std::string title;  // what, and whose
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // as many texts as columns in each
  std::string note;                            // what is published and what is not, and how a column is made
};

// Where published rows and machine files are.
struct Places {
  std::string data = "bench/hindcast/data", machines = "configs/machines";
};

std::vector<std::string> names();
// Errors: Error for a name that is none of names(), listing them; those of the files.
Table make(const std::string& name, const Places& places);

std::string markdown_of(const Table& table);

// Published runs that core.csv holds.
Table megatron_table(const Places& places);   // Narayanan et al., SC 2021, table 1
Table recompute_table(const Places& places);  // Korthikanti et al., table 5
Table folding_table(const Places& places);    // MoE Parallel Folding, table 4
// Published formulas, and numbers that follow from them.
Table layer_table(const Places& places);  // Korthikanti et al., table 4
Table activation_table();                 // Korthikanti et al., table 2
Table zero_table();                       // Rajbhandari et al., table 1
// What nobody has published, or not in numbers.
Table weak_scaling_table(const Places& places);
Table strong_scaling_table(const Places& places);
Table all_reduce_table(const Places& places);
Table trees_table(const Places& places);

}  // namespace orthant::tables
