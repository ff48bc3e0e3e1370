#include <nlohmann/json.hpp>

#include "apps/search/axis_names.h"
#include "apps/search/reasons.h"
#include "apps/search/search_output.h"

namespace orthant::search {
namespace {

using Json = nlohmann::ordered_json;

Json object_of(const std::vector<std::pair<std::string, double>>& parts) {
  Json object = Json::object();
  for (const auto& [name, value] : parts) {
    object[name] = value;
  }
  return object;
}

Json layout_json(const Problem& problem, const Timed& one) {
  const Candidate& c = one.candidate;
  Json order = Json::array();
  const auto& axes = all_orders().at(c.order);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    order.push_back(named::of(*axis));
  }
  return {{"text", text_of(c)},
          {"order", order},
          {named::pipeline, c.pipeline},
          {"schedule", name_of(c.schedule)},
          {"chunks", c.chunks},
          {named::data, c.data},
          {"zero", c.zero},
          {named::sequence, c.sequence},
          {"sequence_method", c.ulysses ? "ulysses" : "ring"},
          {named::tensor, c.tensor},
          {"sequence_parallel", c.sequence_parallel},
          {"experts", c.folded ? "fold" : "split"},
          {named::expert, c.expert},
          {"rows_travel", name_of(c.travel)},
          {"micro_batch", c.micro_batch},
          {"recompute", name_of(c.recompute)},
          {"states", c.host_states ? "host" : "device"},
          {"seconds", one.time.seconds},
          {"tokens_per_second", problem.base.global_batch * problem.model.sequence / one.time.seconds},
          {"seconds_by_part", object_of(parts_of(one.time))},
          {"bytes", one.memory.total()},
          {"bytes_by_kind", object_of(kinds_of(one.memory))},
          {"host_bytes", one.memory.host}};
}

Json layouts_json(const Problem& problem, const std::vector<Timed>& layouts) {
  Json list = Json::array();
  for (const Timed& one : layouts) {
    list.push_back(layout_json(problem, one));
  }
  return list;
}

}  // namespace

std::string answer_json(const Shown& shown) {
  const Counts& counts = shown.answer.counts;
  Json json = {{"configuration", shown.configuration},
               {"machine", shown.machine},
               {"ranks", shown.problem.base.ranks},
               {"memory_bytes", shown.problem.memory},
               {"counts",
                {{"legal", counts.legal},
                 {"too_large_by_bound", counts.too_large_by_bound},
                 {"too_large", counts.too_large},
                 {"slower_by_work", counts.slower_by_work},
                 {"slower_by_bound", counts.slower_by_bound},
                 {"timed", counts.timed}}},
               {"best", layouts_json(shown.problem, shown.answer.best)},
               {"frontier", layouts_json(shown.problem, shown.answer.frontier)}};
  Json classes = Json::array();
  for (const Rejected& one : rejected(shown.problem, shown.answer)) {
    Json entry = {{"class", text_of(one.of)}, {"fits", one.fits}};
    if (one.fits) {
      entry["slower"] = one.slower;
    }
    entry["why"] = one.why;
    classes.push_back(std::move(entry));
  }
  json["rejected"] = std::move(classes);
  Json refused = Json::array();
  for (const auto& [of, why] : shown.answer.refused) {
    refused.push_back({{"class", text_of(of)}, {"why", why}});
  }
  for (const auto& [feature, why] : shown.problem.refuses) {
    refused.push_back({{"class", name_of(feature)}, {"why", why}});
  }
  json["refused"] = std::move(refused);
  Json skew = Json::array();
  for (const SkewAnswer& one : shown.skew) {
    skew.push_back({{"question", one.question},
                    {"mean_seconds", one.seconds.mean},
                    {"p50_seconds", one.seconds.p50},
                    {"p99_seconds", one.seconds.p99},
                    {"busiest_rank", one.busiest},
                    {"dropped", one.dropped},
                    {"fits", one.fits}});
  }
  json["routing"] = std::move(skew);
  json["what_binds"] = shown.answer.best.empty() ? Json(why_nothing_fits(shown.problem, shown.answer)) : Json(nullptr);
  json["spread"] = shown.spread;
  json["notes"] = shown.notes;
  return json.dump(2) + "\n";
}

}  // namespace orthant::search
