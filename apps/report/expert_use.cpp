// What the experts of a run are chosen for: routing/experts.json, which `orthant route RUN --experts` leaves.
#include <fmt/format.h>

#include "apps/report/figures.h"
#include "apps/report/markup.h"
#include "apps/report/read_json.h"
#include "apps/report/run_figures.h"

namespace orthant::report {
namespace {

std::string command_of(const RunData& run) {
  return "orthant route " + shell_word(run.folder.lexically_normal().string()) + " --experts";
}

std::string tokens_text(const Json& expert, const char* key, const std::string& where) {
  std::string text;
  for (const Json& token : list_at(expert, key, where)) {
    const std::string written = text_or_empty(token, "text", where);
    text += fmt::format(
        "{}{} {:.0f} %", text.empty() ? "" : ", ",
        written.empty() ? fmt::format("id {:.0f}", number_at(token, "id", where).value_or(0)) : Json(written).dump(),
        100 * number_at(token, "share", where).value_or(0));
  }
  return text;
}

// One map a block: experts by sets, over what an even choice would give.
void add_domains(const RunData& run, const Json& found, const std::string& where, Section& section) {
  HeatMaps maps;
  for (const Json& set : list_at(found, "sets", where)) {
    maps.columns.push_back(text_or_empty(set, "name", where));
  }
  if (maps.columns.size() < 2) {
    return;  // of one set there is nothing to tell apart
  }
  maps.title = "Experts by validation set, " + run.name;
  maps.description =
      "A map a block, a row an expert, a column a set: share of the set's tokens that choose the expert.";
  maps.row_label = "expert";
  maps.column_label = "validation set";
  maps.legend = "share / even share";
  const double chosen = number_at(found, "chosen", where).value_or(0);
  for (const Json& layer : list_at(found, "layers", where)) {
    HeatMap map{fmt::format("block {:.0f}", number_at(layer, "block", where).value_or(0)), {}};
    const Json& experts = list_at(layer, "experts", where);
    for (const Json& expert : experts) {
      std::vector<double>& row = map.values.emplace_back();
      for (const Json& share : list_at(expert, "of_sets", where)) {
        row.push_back(number_of(share, where).value_or(0) * static_cast<double>(experts.size()) / chosen);
      }
    }
    maps.maps.push_back(std::move(map));
  }
  section.figure(figure_of(maps, run.id + "-experts-sets",
                           "Domain specialisation: 1 where a set's tokens choose the expert as often as any other.",
                           command_of(run)));
}

void add_saturation(const RunData& run, const Json& found, const std::string& where, Section& section) {
  Plot plot;
  plot.title = "Saturation of the routers, " + run.name;
  plot.description = "Share of a token's experts at the last checkpoint that it had at an earlier one.";
  plot.x = {.label = "optimizer steps", .from_zero = true};
  plot.y = {.label = "experts kept (%)", .from_zero = true, .divisor = 0.01, .data_unit = "of 1"};
  const Json& layers = list_at(found, "layers", where);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Series series{.name = fmt::format("block {:.0f}", number_at(layers[i], "block", where).value_or(0)),
                  .points = {},
                  .colour = ordered_colour(i, layers.size()),
                  .marker = Marker::circle};
    for (const Json& at : list_at(found, "saturation", where)) {
      const Json& shares = list_at(at, "layers", where);
      const auto step = number_at(at, "step", where);
      const auto share = i < shares.size() ? number_of(shares[i], where) : std::nullopt;
      if (step && share) {
        series.points.push_back({*step, *share});
      }
    }
    plot.series.push_back(std::move(series));
  }
  if (has_points(plot)) {
    section.figure(figure_of(plot, run.id + "-saturation",
                             "Of the checkpoints that the run has kept, on what it holds out.", command_of(run)));
  }
}

}  // namespace

void add_expert_use(const RunData& run, Section& section) {
  const std::filesystem::path file = run.folder / "routing" / "experts.json";
  if (!std::filesystem::exists(file)) {
    return;
  }
  const Json found = read_json_file(file);
  const std::string where = file.string();
  add_domains(run, found, where, section);
  add_saturation(run, found, where, section);
  Grid grid{{"block", "expert", "choices", "most frequent tokens", "most specialised tokens"}, {}};
  for (const Json& layer : list_at(found, "layers", where)) {
    std::size_t number = 0;
    for (const Json& expert : list_at(layer, "experts", where)) {
      grid.rows.push_back({text_or_missing(number_at(layer, "block", where)), std::to_string(number++),
                           text_or_missing(number_at(expert, "choices", where)), tokens_text(expert, "frequent", where),
                           tokens_text(expert, "specialised", where)});
    }
  }
  section.table(grid,
                fmt::format("Tokens of the experts of {} at step {}, with the share of each token's occurrences that "
                            "choose the expert ({})",
                            run.name, text_or_missing(number_at(found, "step", where)), command_of(run)),
                true);
}

}  // namespace orthant::report
