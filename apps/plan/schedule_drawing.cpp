#include "apps/plan/schedule_drawing.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/plan/batch_share.h"
#include "core/session/session.h"

namespace orthant {
namespace {

constexpr int forward_slots = 1, backward_slots = 2;
constexpr int longest_line = 110;  // characters

// "F3", "B3"; with several chunks "F3.1", the chunk behind the dot.
std::string label_of(const Instr& instr, int chunks) {
  const char kind = instr.op == Op::forward ? 'F' : 'B';
  return chunks == 1 ? fmt::format("{}{}", kind, instr.micro_batch)
                     : fmt::format("{}{}.{}", kind, instr.micro_batch, instr.chunk);
}

std::string head_of(const Programs& p) {
  return fmt::format("{} stage{}{}, {} micro-batch{}; F forward, B backward (two slots), micro-batches from 0{}",
                     p.stages, p.stages == 1 ? "" : "s", p.chunks == 1 ? "" : fmt::format(" of {} chunks", p.chunks),
                     p.micro_batches, p.micro_batches == 1 ? "" : "es", p.chunks == 1 ? "" : ", chunks behind the dot");
}

std::string bubble_of(const Programs& p, const Timeline& timeline) {
  const std::string below =
      p.chunks == 1 ? fmt::format("{}", p.micro_batches) : fmt::format("({} x {})", p.chunks, p.micro_batches);
  return fmt::format("bubble (idle / busy): {:.4g} measured; ({} - 1) / {} = {:.4g}", timeline.bubble(), p.stages,
                     below, static_cast<double>(p.stages - 1) / (static_cast<double>(p.chunks) * p.micro_batches));
}

}  // namespace

Programs planned_programs(const Config& config) {
  check_layout(config);
  Session session(config);
  session.plan(0, nullptr, nullptr);
  const Plan& plan = session.plan();
  const int chunks = static_cast<int>(plan.cut().size() - 1) / plan.stages();
  return programs_of(plan.schedule(), plan.stages(), chunks, largest_share(plan).micro_batches);
}

std::string schedule_text(const Programs& programs) {
  const Timeline timeline = timeline_of(programs, forward_slots, backward_slots);
  std::size_t width = 0;
  for (const TimeSlot& slot : timeline.of_stage.front()) {
    width = std::max(width, label_of(slot.instr, programs.chunks).size() + 1);
  }
  const std::size_t columns = static_cast<std::size_t>(timeline.length) * width;
  const std::size_t shown = columns <= longest_line ? columns : longest_line / width * width;
  std::string text = head_of(programs) + "\n\n";
  for (int stage = 0; stage < programs.stages; ++stage) {
    std::string line(columns, ' ');
    for (std::size_t at = 0; at < columns; at += width) {
      line[at] = '.';
    }
    for (const TimeSlot& slot : timeline.of_stage[stage]) {
      std::string cell = label_of(slot.instr, programs.chunks);
      cell.resize(static_cast<std::size_t>(slot.end - slot.begin) * width - 1, '-');
      if (slot.instr.op == Op::forward) {
        cell = fmt::format("{:<{}}", label_of(slot.instr, programs.chunks), width - 1);
      }
      line.replace(static_cast<std::size_t>(slot.begin) * width, cell.size(), cell);
    }
    line.resize(shown);
    line.erase(line.find_last_not_of(' ') + 1);
    text += fmt::format("stage {:<3} {}{}\n", stage, line, shown < columns ? " .." : "");
  }
  text += fmt::format("\n{} slots a step", timeline.length);
  text += shown < columns ? fmt::format(", the first {} are shown\n", shown / width) : "\n";
  text += bubble_of(programs, timeline) + "\n";
  text += fmt::format("{} whose activations are held at most, by stage: {}\n",
                      programs.chunks == 1 ? "micro-batches" : "pairs of chunk and micro-batch",
                      fmt::join(timeline.peak, " "));
  return text;
}

std::string schedule_svg(const Programs& programs) {
  constexpr int slot = 28, row = 26, left = 64, top = 44;
  const Timeline timeline = timeline_of(programs, forward_slots, backward_slots);
  const int width = std::max(left + timeline.length * slot + 10, 640);
  const int height = top + programs.stages * row + 34;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"22\">{2}</text>\n",
      width, height, head_of(programs));
  for (int stage = 0; stage < programs.stages; ++stage) {
    const int y = top + stage * row;
    svg += fmt::format(
        "<text x=\"8\" y=\"{}\">stage {}</text>\n<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
        "fill=\"#eeeeee\"/>\n",
        y + 16, stage, left, y, timeline.length * slot, row - 4);
    for (const TimeSlot& s : timeline.of_stage[stage]) {
      // Later chunks are lighter.
      const int light = 62 + 28 * s.instr.chunk / programs.chunks;
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"hsl({},60%,{}%)\" stroke=\"white\"/>"
          "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
          left + s.begin * slot, y, (s.end - s.begin) * slot, row - 4, s.instr.op == Op::forward ? 210 : 130, light,
          left + (s.begin + s.end) * slot / 2, y + 15, label_of(s.instr, programs.chunks).substr(1));
    }
  }
  svg += fmt::format("<text x=\"8\" y=\"{}\">{}; blue: forward, green: backward</text>\n</svg>\n", height - 12,
                     bubble_of(programs, timeline));
  return svg;
}

}  // namespace orthant
