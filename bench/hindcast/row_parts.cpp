#include "bench/hindcast/row_parts.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "apps/cost/step_time.h"

namespace orthant::hindcast {

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string machine_of(const std::string& gpu) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 12> names = {{{"gb300", "gb300"},
                                                                                    {"gb200", "gb200"},
                                                                                    {"b300", "b300"},
                                                                                    {"b200", "b200"},
                                                                                    {"h800", "h800"},
                                                                                    {"h200", "h200"},
                                                                                    {"h100", "h100"},
                                                                                    {"a100-40", "a100-40"},
                                                                                    {"a100 40", "a100-40"},
                                                                                    {"a100", "a100-80"},
                                                                                    {"v100", "v100"},
                                                                                    {"mi250", "mi250x"}}};
  const std::string text = lower_case(gpu);
  for (const auto& [part, name] : names) {
    if (text.find(part) != std::string::npos) {
      return std::string(name);
    }
  }
  return "";
}

std::string layout_label(const cost::Layout& layout) {
  std::string text = fmt::format("{} ranks", layout.ranks);
  const auto add = [&](const char* name, double value) {
    if (value != 1) {
      text += fmt::format(" {} {:g}", name, value);
    }
  };
  add("tp", layout.tensor);
  add("pp", layout.pipeline);
  add("chunks", layout.chunks);
  add("cp", layout.context);
  add("ep", layout.expert);
  if (layout.expert > 1) {
    add("etp", layout.expert_tensor);
  }
  text += fmt::format(" mbs {:g} batch {:g}", layout.micro_batch, layout.global_batch);
  if (layout.zero > 0) {
    text += fmt::format(" zero {}", layout.zero);
  }
  return text;
}

void add_row(Rows& rows, Row row, const std::function<void(Row&)>& fill) {
  try {
    fill(row);
    rows.scored.push_back(std::move(row));
  } catch (const Error& error) {
    rows.not_scored.push_back({row.id, row.source, error.what()});
  }
}

int unstated_expert_tensor(const cost::Layout& layout) {
  const int stage = layout.ranks / layout.pipeline;
  int ranks = layout.tensor;
  while (ranks > 1 && stage % (ranks * layout.expert) != 0) {
    ranks /= 2;
  }
  return std::max(1, ranks);
}

}  // namespace orthant::hindcast
