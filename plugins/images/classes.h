// Objective "image_classes": the class of each image, from the mean of the logits of its tokens, or from its class
// token alone. The mean of logits is the logit of the mean: what is pooled is a row of classes and no row of d, and
// nothing but this objective knows of it, in any layout.
//
//   loss = (1 - s) (-log p(label)) + s (the mean of -log p over the classes)
//
// s: train.label_smoothing (Szegedy et al., "Rethinking the Inception Architecture", 2016). Figures: top1 and top5, the
// share of images whose class is the likeliest, or one of the five likeliest; classes of equal logits in their order.
#pragma once

#include <memory>

#include <orthant/objective.h>

namespace orthant::images {

std::shared_ptr<const Objective> make_classes();

}  // namespace orthant::images
