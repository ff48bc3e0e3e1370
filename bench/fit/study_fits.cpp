#include "bench/fit/study_fits.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "bench/fit/power_law.h"

namespace orthant {
namespace {

// The runs of one point, in the order given.
struct Point {
  std::vector<const StudyPoint*> runs;
  const StudyPoint& first() const { return *runs.front(); }
  bool dense() const { return first().experts == 1; }
  std::vector<RunCurve> curves() const {
    std::vector<RunCurve> result;
    for (const StudyPoint* run : runs) {
      result.push_back({run->curve, run->seconds_per_step});
    }
    return result;
  }
};

bool same_point(const StudyPoint& a, const StudyPoint& b) {
  return std::tie(a.size, a.variant, a.experts, a.tokens) == std::tie(b.size, b.variant, b.experts, b.tokens);
}

std::vector<Point> gather(std::span<const StudyPoint> runs) {
  std::vector<Point> points;
  std::set<std::string> ids;
  for (const StudyPoint& run : runs) {
    require(ids.insert(run.id).second, "fits of a study: two runs have the id '{}'", run.id);
    require(!run.curve.empty(), "fits of a study: run '{}' has no validation loss", run.id);
    for (const CurvePoint& at : run.curve) {
      require(std::isfinite(at.loss) && at.loss > 0, "fits of a study: run '{}' has the validation loss {} at step {}",
              run.id, at.loss, at.step);
    }
    require(std::isfinite(run.parameters) && run.parameters > 0 && run.experts >= 1,
            "fits of a study: run '{}' has {} parameters and {} experts; expected more than 0, and 1 or more", run.id,
            run.parameters, run.experts);
    const auto at =
        std::find_if(points.begin(), points.end(), [&](const Point& p) { return same_point(p.first(), run); });
    (at == points.end() ? points.emplace_back() : *at).runs.push_back(&run);
  }
  return points;
}

double final_loss(const StudyPoint& run) {
  return run.curve.back().loss;
}

// With the variant, where there are several.
std::string titled(const std::string& name, const std::string& variant, bool several) {
  return several ? name + ", " + (variant.empty() ? "no variant" : variant) : name;
}

// The twin of a point: dense, of the same size, trained on as many tokens where there is such a one.
const Point* twin_of(const Point& point, const std::vector<Point>& points) {
  const Point* twin = nullptr;
  for (const Point& other : points) {
    if (other.dense() && other.first().size == point.first().size) {
      const bool as_long = other.first().tokens == point.first().tokens;
      twin = twin == nullptr || as_long ? &other : twin;
    }
  }
  return twin;
}

std::vector<LawCurve> curves_of(const RoutedLaw& law, const std::vector<FinalLoss>& runs) {
  constexpr int steps = 48;
  struct Of {
    double parameters = 0, fewest = INFINITY, most = 0;
  };
  std::map<std::string, Of> sizes;
  for (const FinalLoss& run : runs) {
    Of& of = sizes[run.size];
    of = {run.parameters, std::min(of.fewest, run.experts), std::max(of.most, run.experts)};
  }
  std::vector<LawCurve> curves;
  for (const auto& [size, of] : sizes) {
    LawCurve& curve = curves.emplace_back(LawCurve{size, {}});
    for (int i = 0; i <= steps; ++i) {
      const double experts = of.fewest * std::pow(of.most / of.fewest, static_cast<double>(i) / steps);
      curve.points.emplace_back(experts, law.loss(of.parameters, experts));
    }
  }
  return curves;
}

class StudyFit {
 public:
  StudyFit(std::span<const StudyPoint> runs, const FitOptions& options) : options_(options), points_(gather(runs)) {}

  Fits run() {
    std::vector<std::string> variants;
    for (const Point& point : points_) {
      const std::string& variant = point.first().variant;
      if (!point.dense() && std::find(variants.begin(), variants.end(), variant) == variants.end()) {
        variants.push_back(variant);
      }
    }
    for (const std::string& variant : variants) {
      const std::string name = titled("routed law (Clark et al., 2022)", variant, variants.size() > 1);
      attempt(name, [&] { routed_law(name, variant); });
    }
    if (variants.empty()) {
      skip("routed law (Clark et al., 2022)", "no run has more than one expert");
    }
    const std::string floor = "power law with floor, dense models";
    attempt(floor, [&] { floor_law(floor); });
    const std::string both = "law over model and data, dense models (Hoffmann et al., 2022)";
    attempt(both, [&] { model_data_law(both); });
    for (const Point& point : points_) {
      attempt("spread of seeds of " + point.first().id, [&] { spread_.add(point.curves()); });
    }
    for (const Point& point : points_) {
      if (!point.dense()) {
        const std::string name = "speed-up of " + point.first().id;
        attempt(name, [&] { speed_up_of(name, point); });
      }
    }
    return std::move(fits_);
  }

 private:
  void skip(const std::string& name, const std::string& why) { fits_.skipped.push_back({name, why}); }

  // A grid that does not determine a law is a reason to leave it out.
  template <class Fit>
  void attempt(const std::string& name, Fit fit) {
    try {
      fit();
    } catch (const Error& error) {
      skip(name, error.what());
    }
  }

  void routed_law(const std::string& name, const std::string& variant) {
    std::vector<FinalLoss> losses;
    std::vector<const Point*> routed;
    FittedLaw law{name,
                  "log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d, "
                  "1/Ê = 1/(E - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max",
                  {},
                  0,
                  0,
                  {},
                  {}};
    for (std::size_t p = 0; p < points_.size(); ++p) {
      const Point& point = points_[p];
      if (!point.dense() && point.first().variant != variant) {
        continue;
      }
      for (const StudyPoint* run : point.runs) {
        losses.push_back({run->size, run->parameters, run->experts, losses.size(), final_loss(*run)});
        losses.back().point = p;
        law.predicted.push_back({run->id, 0});
      }
      if (!point.dense()) {
        routed.push_back(&point);
      }
    }
    if (const std::string why = routed_law_needs(losses); !why.empty()) {
      skip(name, why);
      return;
    }
    const RoutedLawFit fit = fit_routed_law(losses, options_.bootstrap);
    for (std::size_t k = 0; k < RoutedLaw::names.size(); ++k) {
      law.coefficients.push_back({RoutedLaw::names[k], fit.law.values()[k], fit.intervals[k]});
    }
    law.residual_rms = fit.residual_rms;
    law.runs = fit.runs;
    law.leave_one_size_out = fit.left_out;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      law.predicted[i].loss = fit.law.loss(losses[i].parameters, losses[i].experts);
    }
    law.curves = curves_of(fit.law, losses);
    fits_.laws.push_back(std::move(law));
    for (const Point* point : routed) {
      const auto effective = [&](const RoutedLaw& l) {
        return l.effective_parameters(point->first().parameters, point->first().experts);
      };
      fits_.effective_parameters.push_back(
          {point->first().id, effective(fit.law), interval_of(fit, options_.bootstrap, effective)});
    }
  }

  void floor_law(const std::string& name) {
    std::vector<LossAt> losses;
    FittedLaw law{name, "L = E0 + A / N^alpha", {}, 0, 0, {}, {}};
    for (std::size_t p = 0; p < points_.size(); ++p) {
      for (const StudyPoint* run : points_[p].runs) {
        if (points_[p].dense()) {
          losses.push_back({run->parameters, final_loss(*run), p});
          law.predicted.push_back({run->id, 0});
        }
      }
    }
    if (const std::string why = power_law_needs(losses); !why.empty()) {
      skip(name, why);
      return;
    }
    const PowerLawFit fit = fit_power_law(losses, options_.bootstrap);
    if (fit.law.floor <= 0) {
      skip(name, fmt::format("these losses show no floor: the best one is {:.3g}", fit.law.floor));
      return;
    }
    law.coefficients = {{"E0", fit.law.floor, fit.intervals[0]},
                        {"A", fit.law.amplitude, fit.intervals[1]},
                        {"alpha", fit.law.exponent, fit.intervals[2]}};
    law.residual_rms = fit.residual_rms;
    law.runs = fit.rows;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      law.predicted[i].loss = fit.law.loss(losses[i].x);
    }
    fits_.laws.push_back(std::move(law));
  }

  void model_data_law(const std::string& name) {
    std::vector<LossOfModelAndData> losses;
    FittedLaw law{name, "L = E0 + A / N^alpha + B / D^beta", {}, 0, 0, {}, {}};
    for (std::size_t p = 0; p < points_.size(); ++p) {
      for (const StudyPoint* run : points_[p].runs) {
        if (points_[p].dense() && run->tokens > 0) {
          losses.push_back({run->parameters, run->tokens, final_loss(*run), p});
          law.predicted.push_back({run->id, 0});
        }
      }
    }
    if (const std::string why = model_data_law_needs(losses); !why.empty()) {
      skip(name, why);
      return;
    }
    const ModelDataLawFit fit = fit_model_data_law(losses, options_.bootstrap);
    if (fit.law.floor <= 0) {
      skip(name, fmt::format("these losses show no floor: the best one is {:.3g}", fit.law.floor));
      return;
    }
    law.coefficients = {{"E0", fit.law.floor, fit.intervals[0]},
                        {"A", fit.law.model_amplitude, fit.intervals[1]},
                        {"alpha", fit.law.model_exponent, fit.intervals[2]},
                        {"B", fit.law.data_amplitude, fit.intervals[3]},
                        {"beta", fit.law.data_exponent, fit.intervals[4]}};
    law.residual_rms = fit.residual_rms;
    law.runs = fit.rows;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      law.predicted[i].loss = fit.law.loss(losses[i].parameters, losses[i].tokens);
    }
    fits_.laws.push_back(std::move(law));
  }

  void speed_up_of(const std::string& name, const Point& point) {
    const Point* twin = twin_of(point, points_);
    if (twin == nullptr) {
      skip(name, fmt::format("there is no dense twin of size '{}'", point.first().size));
      return;
    }
    fits_.speed_ups.push_back(
        {point.first().id, twin->first().id, speed_up(point.curves(), twin->curves(), spread_, options_.bootstrap)});
  }

  FitOptions options_;
  std::vector<Point> points_;
  SeedSpread spread_;
  Fits fits_;
};

}  // namespace

Fits fit_study(std::span<const StudyPoint> points, const FitOptions& options) {
  return StudyFit(points, options).run();
}

}  // namespace orthant
