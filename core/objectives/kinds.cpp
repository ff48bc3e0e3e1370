#include "core/objectives/kinds.h"

#include <orthant/settings.h>

#include "core/objectives/multi_token.h"

namespace orthant {

void add_objectives(Catalogue& catalogue) {
  catalogue.add<Objective>("cross_entropy", "The next token: -log p(label), a mean over the tokens that count.",
                           make_cross_entropy());
  catalogue.add<Objective>("pairs", "Of two answers to a prompt the preferred one (Rafailov et al., \"DPO\", 2023).",
                           make_pairs());
  catalogue.add<Objective>(
      "distil", "The next token, and what a teacher says of it (Hinton et al., \"Distilling the knowledge\", 2015).",
      make_distil());
  catalogue.add<Objective>(multi_token_name,
                           "Tokens further ahead (DeepSeek-AI, \"DeepSeek-V3\", 2024): of model.mtp_depth, beside the "
                           "head's objective.",
                           make_multi_token());
}

std::vector<const Objective*> objectives_of(const Settings& settings) {
  std::vector<const Objective*> found = {&objective_of(settings)};
  if (settings.model.mtp_depth > 0) {
    found.push_back(&settings.catalogue->get<Objective>(multi_token_name));
  }
  return found;
}

}  // namespace orthant
