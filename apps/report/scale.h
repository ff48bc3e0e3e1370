// Axes: from numbers to places in a picture, and ticks that people like to read.
#pragma once

#include <string>
#include <vector>

namespace orthant::report {

enum class ScaleKind { linear, logarithmic };

struct Axis {
  std::string label;  // with its unit: "time (s)"
  ScaleKind kind = ScaleKind::linear;
  bool from_zero = false;          // linear: the axis begins at 0 (or ends there)
  std::vector<double> ticks = {};  // these, where they are known (numbers of experts); empty: nice ones
  bool whole = false;              // linear: numbers of things, whose ticks are whole
  double divisor = 1;              // what is shown is a number divided by this (bytes as MiB)
  std::string data_unit = {};      // of the number itself, where it is divided: "bytes"
};

// Shared by the ticks of one axis, so that they read alike: "0", "0.5", "1.0"; "0", "5k", "10k".
std::vector<std::string> tick_labels(const std::vector<double>& ticks, ScaleKind kind);

// A number for people, with at most four significant digits: "0.0123", "1.5k", "2.07M", "1e-05".
std::string number_text(double value);

// Ticks within [low, high], about `count` of them: multiples of 1, 2, 2.5 or 5 times a power of ten; for a logarithmic
// axis powers of ten, or 1, 2 and 5 times them. At least two wherever low < high.
std::vector<double> nice_ticks(double low, double high, ScaleKind kind, int count);

// Maps [low, high] to [begin, end] (pixels; begin may be the larger). Where all numbers are equal it makes room around
// them. A logarithmic scale REQUIRES low > 0.
class Scale {
 public:
  Scale(const Axis& axis, double low, double high, double begin, double end, int ticks);
  double at(double value) const;
  const std::vector<double>& ticks() const { return ticks_; }
  std::vector<std::string> labels() const;
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double place(double value) const;  // linear in what the scale is linear in

  Axis axis_;
  double low_, high_, begin_, end_;
  std::vector<double> ticks_;
};

// How bytes and seconds are best shown up to `largest`: a divisor and the unit's name.
struct Unit {
  double divisor = 1;
  std::string name;
  std::string base;  // "bytes", "s"
};
Unit bytes_unit(double largest);
Unit seconds_unit(double largest);

}  // namespace orthant::report
