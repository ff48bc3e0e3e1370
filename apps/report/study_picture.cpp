// The one figure of a study for a README: final loss against experts, and loss against seconds of the largest size.
#include <fmt/format.h>

#include <charconv>

#include "apps/report/drawing.h"
#include "apps/report/markup.h"
#include "apps/report/study_figures.h"
#include "apps/report/style.h"

namespace orthant::report {
namespace {

// A picture within a picture: its own viewBox, at (x, y).
std::string placed(const std::string& picture, double x, double y, double height) {
  return fmt::format("<svg x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\"{}", x, y, picture_width, height,
                     picture.substr(4));
}

double height_of(const std::string& picture) {
  const std::string before = fmt::format("viewBox=\"0 0 {} ", picture_width);
  double height = 0;  // 0: not there
  const std::size_t at = picture.find(before);
  if (at != std::string::npos) {
    std::from_chars(picture.data() + at + before.size(), picture.data() + picture.size(), height);
  }
  return height;
}

}  // namespace

std::string study_picture(const StudyData& study, const Groups& groups) {
  const std::string size = groups.sizes.empty() ? "" : groups.sizes.back();
  const std::string left = svg(loss_against_experts(groups), "experts", "Final loss against experts, equal steps");
  const std::string right = svg(curves_against_seconds(groups, size), "seconds",
                                "Loss against seconds" + (size.empty() ? "" : ", size " + shortened(size, 20)));
  const double height = std::max(height_of(left), height_of(right)), margin = 16;
  const double width = 2 * picture_width + 3 * margin;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "role=\"img\" aria-labelledby=\"study-t study-d\"><title id=\"study-t\">{2}</title><desc id=\"study-d\">Left: "
      "final "
      "validation loss against the number of experts, a line a size, with 95 % intervals where points have several "
      "seeds. "
      "Right: validation loss against seconds of training of one size, a line a number of experts.</desc>\n"
      "<style>{3}</style>\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"var(--back)\"/>\n{4}{5}</svg>\n",
      width, height + 2 * margin, escaped(study.title.empty() ? study.name : study.title), picture_style,
      placed(left, margin, margin, height_of(left)),
      placed(right, picture_width + 2 * margin, margin, height_of(right)));
}

}  // namespace orthant::report
