// The table of layouts: every axis with every variant of it, all products of them on up to eight (Slow: sixteen) ranks,
// crossed with what a model can be. One list for every test that asks something of all layouts.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "tests/support/experiment.h"

namespace orthant::test {

// One way to be of one axis: the keys of its table.
struct AxisVariant {
  std::string axis;   // its plugin
  std::string label;  // "zero2", "gpipe"
  int size = 1;
  std::string keys;  // further lines of the table
};

struct TableLayout {
  std::vector<AxisVariant> axes;  // in the order of the tables, outermost first
  std::string name() const;       // "data2_zero3_tensor2_fold": as the axes stand
  std::string plugins() const;    // TOML
  int ranks() const;              // carved axes add none
  const AxisVariant* find(const std::string& axis) const;
};

struct TableCell {
  TableLayout layout;
  Model model;
  std::string name() const { return layout.name() + "__" + model.name; }
  Overrides overrides() const;                      // of the model, and those of every cell
  Config config(const Overrides& more = {}) const;  // Errors: ConfigError
};

// The experiment that the models change: six blocks, every other with eight experts, sixteen positions, sixteen
// sequences in micro-batches of two.
Overrides table_base();

const std::vector<Model>& table_models();

// All products of variants on exactly 2, 4, 8 and 16 ranks, and no more than `most`; those that are refused too.
const std::vector<TableLayout>& all_layouts(int most = 16);

inline void PrintTo(const TableCell& cell, std::ostream* out) {
  *out << cell.name();
}

// Words of the message with which a cell is refused; nothing: it must work.
std::optional<std::string> refusal_of(const TableCell& cell);

// Cells on at most eight ranks that work, in a fixed order: each axis alone with each model, then as few as bring
// every two variants of axes, and every variant with every model, together.
const std::vector<TableCell>& quick_cells();

// Every layout that works on `ranks`, each with `models` of the models in turn.
std::vector<TableCell> full_cells(int ranks, std::size_t models);

}  // namespace orthant::test
