#include "core/arch/trained_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

#include "core/arch/parameter_table.h"

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
  std::vector<std::pair<std::string, std::int64_t>> adapted;  // in the table's order
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      all += spec.global.elements();
      trained += spec.frozen ? 0 : spec.global.elements();
      if (spec.adapted) {
        const std::string kind = kind_of_name(spec.name);
        const auto known = std::find_if(adapted.begin(), adapted.end(), [&](const auto& k) { return k.first == kind; });
        ++(known == adapted.end() ? adapted.emplace_back(kind, 0) : *known).second;
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
    lines.push_back(fmt::format("adapters of rank {}, scale {:g}, on {} matrices:", settings.lora.rank,
                                settings.lora.scale(), matrices));
  }
  for (const auto& [kind, count] : adapted) {
    lines.push_back(fmt::format("  {} of {}", count, kind));
  }
  return lines;
}

}  // namespace orthant
