#include "core/arch/trained_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>
#include <utility>

#include "core/arch/links.h"
#include "core/arch/trained.h"

namespace orthant {

std::string kind_of_name(const std::string& name) {
  std::string kind;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string word = name.substr(at, end - at);
    const bool number = std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    kind += (at > 0 ? "." : "") + (number ? "*" : word);
    at = end + 1;
  }
  return kind;
}

std::vector<std::string> trained_text(const Settings& settings) {
  std::int64_t all = 0, trained = 0, matrices = 0;
  std::set<std::int64_t> ranks;
  std::set<double> scales;
  std::vector<std::pair<std::string, std::int64_t>> adapted;  // in the table's order
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      all += spec.global.elements();
      trained += spec.frozen ? 0 : spec.global.elements();
      if (spec.adapted) {
        const std::string kind = kind_of_name(spec.name);
        const auto known = std::find_if(adapted.begin(), adapted.end(), [&](const auto& k) { return k.first == kind; });
        ++(known == adapted.end() ? adapted.emplace_back(kind, 0) : *known).second;
        ranks.insert(settings.lora.rank_for(spec.name));
        scales.insert(settings.lora.scale_for(spec.name));
        ++matrices;
      }
    }
  }
  std::vector<std::string> lines;
  if (trained < all) {
    lines.push_back(fmt::format("trains {} of {} parameters ({:.3g} %)", trained, all,
                                100 * static_cast<double>(trained) / static_cast<double>(all)));
  }
  if (matrices > 0) {
    std::vector<std::string> numbers;
    for (const double scale : scales) {
      numbers.push_back(fmt::format("{:g}", scale));
    }
    lines.push_back(fmt::format("adapters of rank {}, scale {}, on {} matrices:", fmt::join(ranks, " and "),
                                fmt::join(numbers, " and "), matrices));
  }
  for (const auto& [kind, count] : adapted) {
    lines.push_back(fmt::format("  {} of {}", count, kind));
  }
  return lines;
}

std::vector<std::string> rates_text(const Settings& settings) {
  const OptimizerSettings& o = settings.optimizer;
  if (o.lr_of.empty() && o.no_decay.empty()) {
    return {};
  }
  std::vector<std::int64_t> elements(o.lr_of.size() + 1), parameters(o.lr_of.size() + 1);  // the last: without decay
  const auto add = [&](std::size_t i, const ParamSpec& spec) {
    elements[i] += spec.global.elements();
    ++parameters[i];
  };
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      if (spec.frozen) {
        continue;
      }
      if (const std::optional<std::size_t> at = rate_of(o, spec.name)) {
        add(*at, spec);
      }
      if (matches_any(o.no_decay, spec.name)) {
        add(o.lr_of.size(), spec);
      }
    }
  }
  const auto counted = [&](std::size_t i) {
    return fmt::format("{} parameter{}, {} elements", parameters[i], parameters[i] == 1 ? "" : "s", elements[i]);
  };
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < o.lr_of.size(); ++i) {
    lines.push_back(fmt::format("\"{}\" learns at {:g} times the rate: {}", o.lr_of[i], o.lr_scales.at(i), counted(i)));
  }
  if (!o.no_decay.empty()) {
    lines.push_back("without decay besides norms and biases: " + counted(o.lr_of.size()));
  }
  return lines;
}

}  // namespace orthant
