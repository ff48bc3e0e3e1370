// The figures of a study. Each adds what the study has, and nothing where it has none of it.
#pragma once

#include <string>

#include "apps/report/page.h"
#include "apps/report/study_data.h"
#include "apps/report/study_groups.h"

namespace orthant::report {

// study_curves.cpp: losses against what they cost.
void add_loss_against_seconds(const StudyData& study, const Groups& groups, Section& section);
void add_loss_against_costs(const StudyData& study, const Groups& groups, Section& section);
void add_loss_against_experts(const StudyData& study, const Groups& groups, Section& section);
Plot loss_against_experts(const Groups& groups);
// The curves of one size against seconds of training.
Plot curves_against_seconds(const Groups& groups, const std::string& size);

// study_costs.cpp: what experts cost.
void add_step_times(const StudyData& study, const Groups& groups, Section& section);
void add_memory_and_bytes(const StudyData& study, const Groups& groups, Section& section);
void add_drops(const StudyData& study, const Groups& groups, Section& section);

// study_fits.cpp: laws, residuals, speed-up, effective parameters.
void add_fits(const StudyData& study, const Groups& groups, Section& section);
void add_speed_up(const StudyData& study, const Groups& groups, Section& section);

// study_layouts.cpp: one point on several layouts; strong and weak scaling.
void add_one_curve(const StudyData& study, const Groups& groups, Section& section);
void add_scaling(const StudyData& study, const Groups& groups, Section& section);

// study_tables.cpp: the points, what failed, what was run where.
void add_summary(const StudyData& study, const Groups& groups, Section& section);
void add_points(const StudyData& study, Section& section);
void add_study_methods(const StudyData& study, const Groups& groups, Section& section);

// study_picture.cpp: the one figure for a README, an SVG file by itself.
std::string study_picture(const StudyData& study, const Groups& groups);

// "orthant train base.toml --set ...": what trains a point again. base.toml is offered by the page.
std::string command_of(const PointData& point);
// What makes the numbers of a figure about many points.
std::string command_of(const StudyData& study);
// The axis of numbers of experts.
Axis experts_axis(const Groups& groups);

}  // namespace orthant::report
