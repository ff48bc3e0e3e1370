// Made-up studies and runs for tests of reports: plausible numbers that nobody measured.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace orthant::report_test {

using Json = nlohmann::json;

inline std::string text_in(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

// Deterministic noise in (-1, 1).
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : engine_(seed) {}
  double operator()() { return 2 * static_cast<double>(engine_() >> 11) / 9007199254740992.0 - 1; }

 private:
  std::mt19937_64 engine_;
};

struct PointPlan {
  std::string size;
  int experts = 1, seed = 1, ranks = 1;
  double capacity_factor = 0;
  std::string layout = "one";
};

// A power law in tokens with a floor that experts lower a little, and steps that grow with experts.
inline Json made_up_point(const PointPlan& plan) {
  const double width = plan.size == "small" ? 1 : plan.size == "medium" ? 2 : 4;
  Noise noise(static_cast<std::uint64_t>(1000 * plan.experts + 10 * plan.seed) + static_cast<std::uint64_t>(width));
  const double active = 4e5 * width * width, experts = plan.experts;
  const double seconds = 0.02 * width * width * (1 + 0.06 * std::log2(experts)) / std::sqrt(plan.ranks);
  const std::string id = plan.size + "_e" + std::to_string(plan.experts) + "_k1_g1_r" + std::to_string(plan.ranks) +
                         "_s" + std::to_string(plan.seed) +
                         (plan.capacity_factor > 0 ? "_c" + std::to_string(plan.capacity_factor).substr(0, 4) : "") +
                         (plan.layout == "one" ? "" : "_" + plan.layout);
  Json p = {{"id", id},
            {"size", plan.size},
            {"experts", plan.experts},
            {"top_k", 1},
            {"capacity_factor", plan.capacity_factor},
            {"granularity", 1},
            {"layout", plan.layout},
            {"ranks", plan.ranks},
            {"seed", plan.seed}};
  p["set"] = {"moe.experts=" + std::to_string(plan.experts), "run.seed=" + std::to_string(plan.seed),
              "model.d_model=" + std::to_string(static_cast<int>(64 * width))};
  p["parameters"] = {{"total", active * (1 + 0.6 * (experts - 1))}, {"active", active}};
  p["flops_per_token"] = {{"model", 6 * active}, {"router", plan.experts == 1 ? 0 : 6.0 * 64 * width * experts}};
  p["dispatch_bytes_per_token"] = plan.experts == 1 ? 0 : 2 * 4 * 64 * width;
  p["tokens"] = 4e6 * width;
  p["steps"] = 1000;
  p["status"] = "done";
  p["error"] = "";
  Json curve = Json::array();
  double loss = 0;
  for (int step = 50; step <= 1000; step += 50) {
    loss = (1.15 + 2.3 * std::pow(step / 50.0, -0.35)) * std::pow(width, -0.06) * std::pow(experts, -0.022) *
           (1 + 0.002 * noise());
    curve.push_back({step, 4e3 * width * step, loss});
  }
  Json& result = p["result"];
  result = {{"validation_loss", loss},
            {"curve", curve},
            {"train_seconds", 1300 * seconds},
            {"step_seconds", seconds},
            {"forward_backward_seconds", seconds * (0.82 - 0.02 * std::log2(experts))},
            {"peak_bytes", static_cast<std::int64_t>(16 * active * (1 + 0.6 * (experts - 1)) + 3e7)},
            {"drop_rate", plan.capacity_factor > 0 ? 0.3 * std::exp(-1.6 * (plan.capacity_factor - 0.5)) : 0.0}};
  return p;
}

// Sizes x experts, three seeds at two points of the first size, capacity factors, one point on 1, 2, 4 and 8 ranks,
// experts that grow with ranks, one point that failed and one that waits.
inline Json made_up_study() {
  Json study = {{"format", 1},
                {"name", "made_up"},
                {"title", "Made-up numbers: more experts at equal FLOPs"},
                {"command", "orthant bench expert-scaling made_up.toml"},
                {"version", "0.0.0"},
                {"created", "2000-01-01T00:00:00Z"},
                {"seconds", 3130.5}};
  study["machine"] = {
      {"cpu", "a made-up processor"}, {"cores", 2}, {"memory_bytes", 8589934592}, {"os", "none"}, {"compiler", "none"}};
  study["study_toml"] = "# made up\n[study]\nexperts = [1, 2]\n";
  study["config_toml"] = "[run]\nseed = 1\nsteps = 1000\n[model]\nlayers = 4\nd_model = 64\n[moe]\nexperts = 8\n";
  study["text"] = {{"path", "made_up.txt"}, {"bytes", 12000000}, {"hash", "0000"}};
  study["learning_rate_rule"] = "A made-up rule: 3e-3 over the square root of the width.";
  study["metric"] = "validation_loss";
  Json& points = study["points"];
  points = Json::array();
  for (const char* size : {"small", "medium", "large"}) {
    for (const int experts : {1, 2, 4, 8, 16, 32, 64}) {
      const bool several = std::string(size) == "small" && (experts == 1 || experts == 8);
      for (int seed = 1; seed <= (several ? 3 : 1); ++seed) {
        points.push_back(made_up_point({size, experts, seed}));
      }
    }
  }
  for (const double factor : {0.5, 1.0, 1.25, 2.0}) {
    points.push_back(made_up_point({"small", 8, 1, 1, factor}));
  }
  Json counterfactual = Json::array();
  for (double factor = 0.5; factor <= 2; factor += 0.25) {
    counterfactual.push_back({factor, 0.29 * std::exp(-1.6 * (factor - 0.5))});
  }
  points.back()["result"]["counterfactual"] = counterfactual;
  for (const int ranks : {2, 4, 8}) {
    points.push_back(made_up_point({"small", 8, 1, ranks, 0, "ep" + std::to_string(ranks)}));
    points.push_back(made_up_point({"small", 8 * ranks, 1, ranks, 0, "weak" + std::to_string(ranks)}));
  }
  Json failed = made_up_point({"large", 128, 1});
  failed["status"] = "failed";
  failed["error"] = "rank 0 ended with signal 9 <out of memory?>";
  failed.erase("result");
  points.push_back(failed);
  Json waiting = made_up_point({"large", 128, 2});
  waiting["status"] = "waiting";
  waiting["result"] = nullptr;
  points.push_back(waiting);
  return study;
}

inline Json made_up_fits(const Json& study) {
  Json law = {{"name", "routed law (Clark et al., 2022)"},
              {"formula", "log10 L = a log10 N + b log10 E + c log10 N log10 E + d"}};
  law["coefficients"] = {{{"name", "a"}, {"value", -0.08}, {"low", -0.09}, {"high", -0.07}},
                         {{"name", "E_max"}, {"value", 310}, {"low", 120}, {"high", nullptr}}};
  law["residual_rms"] = 0.0021;
  law["points"] = 21;
  law["leave_one_size_out"] = {{{"size", "small"}, {"rms_log_error", 0.004}},
                               {{"size", "large"}, {"rms_log_error", nullptr}}};
  Json speed_up = Json::array(), effective = Json::array();
  for (const Json& p : study["points"]) {
    if (p["status"] != "done" || p["capacity_factor"] != 0.0 || p["ranks"] != 1) {
      continue;
    }
    const double loss = p["result"]["validation_loss"], experts = p["experts"];
    law["predicted"].push_back({{"id", p["id"]}, {"loss", loss * (1 + 0.003 * std::sin(7 * experts))}});
    if (experts > 1 && p["seed"] == 1) {
      const double steps = 1 + 0.25 * std::log2(experts), seconds = steps / (1 + 0.12 * std::log2(experts));
      speed_up.push_back({{"id", p["id"]},
                          {"twin", std::string(p["size"]) + "_e1_k1_g1_r1_s1"},
                          {"steps", steps},
                          {"steps_low", 0.9 * steps},
                          {"steps_high", experts == 64 ? Json(nullptr) : Json(1.1 * steps)},
                          {"seconds", seconds},
                          {"seconds_low", 0.9 * seconds},
                          {"seconds_high", 1.1 * seconds}});
      const double active = p["parameters"]["active"];
      effective.push_back({{"id", p["id"]},
                           {"value", active * std::sqrt(experts)},
                           {"low", active},
                           {"high", experts > 30 ? Json(nullptr) : Json(active * experts)}});
    }
  }
  return {{"laws", {law}},
          {"speed_up", speed_up},
          {"effective_parameters", effective},
          {"skipped", {{{"name", "power law with floor"}, {"why", "made up as too few points"}}}}};
}

inline void write_study(const std::filesystem::path& folder, const Json& study, const Json& fits = nullptr) {
  write_text(folder / "study.json", study.dump(1));
  if (!fits.is_null()) {
    write_text(folder / "fits.json", fits.dump(1));
  }
}

// Lines of metrics.jsonl of a run with `blocks` routed layers (0: dense), with `routing` and `alarms`.
inline std::vector<Json> made_up_lines(int count, int blocks, int experts, std::uint64_t seed) {
  Noise noise(seed);
  std::vector<Json> lines;
  for (int i = 0; i < count; ++i) {
    const int step = i == 0 ? 1 : 10 * i;
    Json line = {{"step", step},
                 {"loss", 2 + 4 * std::exp(-0.1 * i) + 0.05 * noise()},
                 {"aux_loss", 1.02},
                 {"z_loss", 3.0},
                 {"grad_norm", 1.5 + 0.4 * noise()},
                 {"lr", 1e-3 * std::min(1.0, 0.2 * (i + 1))},
                 {"tokens", 2048 * step},
                 {"tokens_per_second", 40000 + 5000 * noise()},
                 {"step_seconds", 0.05 + 0.01 * noise()},
                 {"drop_rate", 0.1 * std::exp(-0.1 * i)},
                 {"expert_load_max_over_mean", 1.5 + 0.3 * noise()},
                 {"peak_bytes", 30000000}};
    line["peak_by_kind"] = {{"weights", 6000000},     {"gradients", 6000000}, {"states", 12000000},
                            {"activations", 5000000}, {"exchange", 600000},   {"work", 380000},
                            {"offload", 0},           {"other", 20000}};
    const bool validates = i % 5 == 4;
    if (validates) {
      line["validation_loss"] = 2.1 + 4 * std::exp(-0.1 * i);
    }
    for (int block = 0; block < blocks; ++block) {
      const std::string name = std::to_string(block);
      Json tokens = Json::array(), pairs = Json::array();
      for (int e = 0; e < experts; ++e) {
        tokens.push_back(static_cast<int>(100 * std::exp(2 * std::exp(-0.15 * i) * noise() + 0.1 * noise())));
        Json row = Json::array();
        for (int other = 0; other < experts; ++other) {
          row.push_back(e == other ? 0 : static_cast<int>(50 * std::exp(noise())));
        }
        pairs.push_back(row);
      }
      line["expert_tokens"][name] = tokens;
      line["routing"][name] = {{"choice_entropy", 0.9 + 0.05 * noise()},
                               {"probability_entropy", 0.5 + 0.05 * noise()},
                               {"dead_experts", i < 3 ? 2 : 0},
                               {"margin", 0.2 + 0.02 * i},
                               {"dropped_by_capacity", 40 - i},
                               {"dropped_by_chance", 3},
                               {"grad_norm_loss", 0.01 * (1.2 + noise())},
                               {"grad_norm_balance", 0.001 * (1.2 + noise())},
                               {"grad_norm_z", 0.0001 * (1.2 + noise())}};
      if (validates) {
        line["routing"][name]["coactivation"] = pairs;
        if (i > 5) {
          line["routing"][name]["churn"] = 0.4 * std::exp(-0.1 * i);
        }
      }
    }
    if (blocks > 0 && i < 3) {
      line["alarms"] = {"layer 0: 2 experts are dead: raise moe.aux_loss"};
    }
    lines.push_back(line);
  }
  return lines;
}

inline Json made_up_trace(int ranks) {
  Json trace = {{"steps", {20, 24}},
                {"step_seconds", 0.045},
                {"late_rank", 1},
                {"why", "it has 1.4 times the rows of the others."}};
  for (int rank = 0; rank < ranks; ++rank) {
    trace["ranks"].push_back({{"rank", rank},
                              {"compute", rank == 1 ? 0.028 : 0.02},
                              {"exposed", 0.006},
                              {"overlapped", 0.003},
                              {"waiting", rank == 1 ? 0.002 : 0.01},
                              {"waiting_for", {{"1", 0.008}}},
                              {"bubble", 0.0},
                              {"other", 0.004},
                              {"operations", {{"gemm", 0.012}, {"attention", 0.004}}}});
  }
  return trace;
}

// As a resolved configuration of made_up_lines' run begins.
inline std::string made_up_config(const std::string& name, int blocks, int experts) {
  return "[run]\nname = \"" + name + "\"\nsteps = 300\n[data]\nsource = \"synthetic\"\nsequence_length = 64\n" +
         "[model]\nlayers = " + std::to_string(std::max(blocks, 1)) +
         "\nd_model = 32\nheads = 4\n[moe]\nexperts = " + std::to_string(blocks > 0 ? experts : 0) + "\n" +
         (blocks > 0 ? "top_k = 2\n" : "");
}

inline void write_run(const std::filesystem::path& folder, const std::vector<Json>& lines,
                      const std::string& config = "", const Json& trace = nullptr) {
  std::string text;
  for (const Json& line : lines) {
    text += line.dump() + "\n";
  }
  write_text(folder / "metrics.jsonl", text);
  if (!config.empty()) {
    write_text(folder / "config.resolved.toml", config);
  }
  if (!trace.is_null()) {
    write_text(folder / "trace" / "summary.json", trace.dump());
  }
}

// One size with its dense twin and a point of 8 experts, `seeds` each.
inline Json small_study(int seeds = 1) {
  Json study = made_up_study();
  study["points"] = Json::array();
  for (const int experts : {1, 8}) {
    for (int seed = 1; seed <= seeds; ++seed) {
      study["points"].push_back(made_up_point({"small", experts, seed}));
    }
  }
  return study;
}

}  // namespace orthant::report_test
