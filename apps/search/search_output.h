// How a search's answer is shown: as text for people, as JSON for programs, as a picture.
#pragma once

#include <string>
#include <vector>

#include "apps/search/search.h"
#include "apps/search/skew_answers.h"

namespace orthant::search {

struct Shown {
  std::string configuration, machine;  // files
  const Problem& problem;
  const Answer& answer;
  std::vector<std::string> notes;     // what was taken for granted, a sentence each
  double seconds = 0;                 // that the search took
  double spread = 0;                  // Practice::spread
  std::vector<SkewAnswer> skew = {};  // of the first layout, by a recorded routing
};

std::string answer_text(const Shown& shown);
std::string answer_json(const Shown& shown);  // docs/guides/search.md lists the keys
// Time against memory of all layouts, the frontier, and who works when in the best one.
std::string answer_svg(const Shown& shown);

// The comment of a file that has this layout.
std::vector<std::string> heading_of(const Shown& shown, const Timed& layout);

}  // namespace orthant::search
