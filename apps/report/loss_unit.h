// What a run's losses are of: a nat per byte, per token of one tokenizer or per pair of answers, or what an objective
// of a plugin measures. Losses of unlike units are not ranked.
#pragma once

#include <filesystem>
#include <string>

namespace orthant {

struct LossUnit {
  std::string name;    // "nats per byte"; empty: not known
  std::string tokens;  // which tokens: equal for equal ones; empty: not known
};

// As the run's configuration says them; "" where it does not.
struct LossSettings {
  std::string source, tokenizer, objective;  // data.source, data.tokenizer, train.objective
};
// run: its folder, which keeps its tokenizer; empty: not known.
LossUnit loss_unit(const LossSettings& of, const std::filesystem::path& run);

// Whether losses in both can be ranked. What is not known is taken for equal.
bool comparable(const LossUnit& a, const LossUnit& b);

// "nats per token (tokenizer 1f3a...)": for a note.
std::string long_name(const LossUnit& unit);

}  // namespace orthant
