#include <fmt/format.h>

#include "apps/report/markup.h"
#include "apps/report/report.h"
#include "apps/report/study_figures.h"

namespace orthant {
namespace report {
namespace {

Page page_of(const StudyData& study, const Groups& groups) {
  Page page{
      study.title.empty() ? "Study " + study.name : study.title,
      "A study of experts at equal active FLOPs. Every picture has its numbers and a CSV file behind \"Numbers\".",
      {}};
  Section summary("summary", "Verdict"), seconds("seconds", "Loss against seconds"),
      experts("experts", "Loss against experts"), costs("costs", "Loss against steps, FLOPs, parameters and memory"),
      time("time", "Time of a step"), speed_up("speed-up", "Speed-up"), fits("fits", "Fits"), drops("drops", "Drops"),
      memory("memory", "Memory and bytes"), layouts("layouts", "Layouts"), points("points", "Points"),
      methods("methods", "Methods");
  add_summary(study, groups, summary);
  add_loss_against_seconds(study, groups, seconds);
  if (seconds.empty()) {
    seconds.paragraph("No point has both losses and a step timed alone yet.", "note");
  }
  add_loss_against_experts(study, groups, experts);
  add_loss_against_costs(study, groups, costs);
  add_step_times(study, groups, time);
  add_speed_up(study, groups, speed_up);
  add_fits(study, groups, fits);
  add_drops(study, groups, drops);
  add_memory_and_bytes(study, groups, memory);
  add_one_curve(study, groups, layouts);
  add_scaling(study, groups, layouts);
  add_points(study, points);
  add_study_methods(study, groups, methods);
  page.sections = {summary, seconds, experts, costs, time, speed_up, fits, drops, memory, layouts, points, methods};
  return page;
}

}  // namespace
}  // namespace report

void write_study_report(const std::filesystem::path& study_folder) {
  const report::StudyData study = report::read_study(study_folder);
  const report::Groups groups = report::groups_of(study);
  report::write_page(study_folder / "report.html", report::html(report::page_of(study, groups)));
  report::write_page(study_folder / "study.svg", report::study_picture(study, groups));
}

}  // namespace orthant
