#include "core/config/tuning_keys.h"

#include "core/config/declarer.h"

namespace orthant {

void declare_tuning(std::vector<CoreKey>& keys) {
  Declarer distil(keys, "distil");
  distil.key(
      "teacher", [](auto& s) -> auto& { return s.distil.teacher; },
      "A run's folder (its newest checkpoint) or a checkpoint's, of a model whose logits this one learns from; a "
      "relative path is relative to the file that names it. Empty: none.");
  between(distil.key(
              "weight", [](auto& s) -> auto& { return s.distil.weight; },
              "The loss is (1 - weight) times the cross entropy, and weight times what the teacher asks for; above 0."),
          0, 1);
  between(distil.key(
              "temperature", [](auto& s) -> auto& { return s.distil.temperature; },
              "The logits of both are divided by it where they are compared; above 0."),
          0, 1000);

  Declarer preference(keys, "preference");
  preference.choice(
      "loss", [](auto& s) -> auto& { return s.preference.loss; }, {"sigmoid", "ipo"},
      "With data.source = \"pairs\", of h = how much more the chosen answer is preferred than by the reference: "
      "sigmoid, -log sigmoid(beta h) (DPO); ipo, (h - 1 / (2 beta))^2 of log-probabilities per token.");
  preference.key(
      "reference", [](auto& s) -> auto& { return s.preference.reference; },
      "A run's folder (its newest checkpoint) or a checkpoint's: the model whose preferences count as none; a relative "
      "path is relative to the file that names it. Empty: that of train.from.");
  between(preference.key(
              "beta", [](auto& s) -> auto& { return s.preference.beta; },
              "How strongly the model is kept near the reference; above 0."),
          0, 1e6);
  between(preference.key(
              "label_smoothing", [](auto& s) -> auto& { return s.preference.label_smoothing; },
              "sigmoid: the share of pairs that are taken to be the wrong way round; below 0.5."),
          0, 0.5);
  between(preference.key(
              "nll_weight", [](auto& s) -> auto& { return s.preference.nll_weight; },
              "Of the chosen answers' cross entropy per token, which is added to the loss (TRL's rpo_alpha); 0: none."),
          0, 1e6);

  Declarer lora(keys, "lora");
  between(lora.key(
              "rank", [](auto& s) -> auto& { return s.lora.rank; },
              "Rank of the adapters of lora.targets (Hu et al., \"LoRA\", 2021), which train in place of all else; 0: "
              "none."),
          0, 1 << 16);
  at_least(lora.key(
               "alpha", [](auto& s) -> auto& { return s.lora.alpha; },
               "A matrix W with an adapter is used as W + alpha / rank * B A."),
           0);
  lora.key(
      "rank_stabilised", [](auto& s) -> auto& { return s.lora.rank_stabilised; },
      "Whether the factor is alpha / sqrt(rank) (Kalajdzievski, \"rsLoRA\", 2023).");
  lora.key(
      "rank_of", [](auto& s) -> auto& { return s.lora.rank_of; },
      "Matrices whose adapters have other ranks, by name as in targets; the first pattern that names one counts.");
  lora.key(
      "ranks", [](auto& s) -> auto& { return s.lora.ranks; }, "Those ranks, one for each pattern of rank_of.");
  lora.key(
      "alpha_of", [](auto& s) -> auto& { return s.lora.alpha_of; },
      "Matrices whose adapters have another alpha, as rank_of.");
  lora.key(
      "alphas", [](auto& s) -> auto& { return s.lora.alphas; }, "Those alphas, one for each pattern of alpha_of.");
  lora.key(
      "targets", [](auto& s) -> auto& { return s.lora.targets; },
      "Matrices that get an adapter, by name as in train.freeze: \"*.q_proj.weight\", \"*.experts.*\".");
  lora.key(
      "train_also", [](auto& s) -> auto& { return s.lora.train_also; },
      "Parameters that train beside the adapters, by name as in train.freeze.");
  at_least(lora.key(
               "init_std", [](auto& s) -> auto& { return s.lora.init_std; },
               "Deviation of the initial A; B begins with zeros."),
           0);
}

}  // namespace orthant
