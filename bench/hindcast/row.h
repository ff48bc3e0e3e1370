// One published run: what ran where, and how long a step took.
//
// Thread safety: values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cost/machine.h"
#include "apps/cost/model_shape.h"

namespace orthant::hindcast {

struct Row {
  std::string id;       // within its file
  std::string source;   // heading of the tables: a paper's table, a file
  std::string family;   // papers, vTrain, recipes or golden values
  std::string held;     // rows of a family with the same text are left out together
  std::string sweep;    // rows of one model, batch and machine whose layouts compete; empty: of none
  std::string machine;  // configs/machines/NAME.toml
  std::string label;    // model and layout, for people
  cost::ModelShape model;
  cost::Layout layout;
  std::optional<double> seconds;     // measured, of one step
  std::optional<double> peak_bytes;  // measured, of rank 0's allocator
  bool out_of_memory = false;        // the source says that it did not fit
  bool told_memory = false;          // recomputation and micro-batch are published: whether it fits can be asked
  double busiest = 1;                // choices of the busiest expert rank over the mean
  bool free_micro_batch = false;     // not published: the model's own choice
  bool free_chunks = false;
  bool fitted = true;     // false: scored only
  bool computed = false;  // most likely not measured: in no fit, and in no mean of regrets
  double weight = 1;      // in a fit
};

// A row that cannot be scored, and why: told of, never dropped in silence.
struct NotScored {
  std::string id, source, why;
};

struct Rows {
  std::vector<Row> scored;
  std::vector<NotScored> not_scored;
};

// The files' formats are told apart by their columns: those of core.csv, of the vTrain files, and of the two Megatron
// files (README.md). Errors: Error naming file, line and column, for what is none of them and for fields that are no
// numbers.
// data: the folder of models.csv.
Rows read_rows(const std::string& path, const std::string& data);

// Model shapes that published recipes name: bench/hindcast/data/models.csv.
using Cards = std::vector<std::pair<std::string, cost::ModelShape>>;
Cards read_cards(const std::string& path);

}  // namespace orthant::hindcast
