// Why one layout is slower than another, and why a class has none that fits.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/search/search.h"

namespace orthant::search {

// The parts of a step's time, by what people call them; they add up to it.
std::vector<std::pair<std::string, double>> parts_of(const cost::StepTime& time);
// The kinds of a rank's bytes.
std::vector<std::pair<std::string, double>> kinds_of(const cost::StageMemory& memory);

// "leaves the node: exchanges of the tensor axis +0.41 s": what `slower` spends most beyond `best`.
std::string why_slower(const Problem& problem, const Timed& slower, const Timed& best);

struct Rejected {
  Class of;
  double slower = 0;  // its best over the best of all, less one; 0 where none fits
  bool fits = false;
  std::string why;
};
// Classes that the best layout is not of, those that lose least first; of each kind the values in order.
std::vector<Rejected> rejected(const Problem& problem, const Answer& answer);

// What binds where nothing fits.
std::string why_nothing_fits(const Problem& problem, const Answer& answer);

}  // namespace orthant::search
