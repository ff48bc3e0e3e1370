// Models of images: sources "images" and "shapes" (image_source.h), ModelKinds "vit" (vit.h) and "coatnet"
// (coatnet.h), FFN "vit_mlp", gates
// "batch_priority" and "soft" (gates.h), objective "image_classes" (classes.h). It claims no axis and binds no seam.
//
//   [data]
//   source = "images"
//   path = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]
//   [model]
//   kind = "vit"
//   [plugins.images]
#include <orthant/plugin.h>

#include "classes.h"
#include "coatnet.h"
#include "gates.h"
#include "image_source.h"
#include "vit.h"
#include "vit_mlp.h"

namespace {

using namespace orthant;

class Images final : public Plugin {
  std::vector<KeySpec> keys() const override { return {}; }
  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<Source>("images", "Labelled images: IDX, CIFAR's files, a folder of PNG and JPEG for each class.",
                          images::make_image_source());
    catalogue.add<Source>("shapes", "Drawn images of eight shapes.", images::make_shape_source());
    catalogue.add<ModelKind>("vit", "Patches of an image, and its class (Dosovitskiy et al., 2020).",
                             images::make_vit());
    catalogue.add<ModelKind>("coatnet", "Convolutions, then attention with relative positions (Dai et al., 2021).",
                             images::make_coatnet());
    catalogue.add<FfnPart>("vit_mlp", "Two matrices with biases around model.activation.", images::make_vit_mlp());
    catalogue.add<Gate>("batch_priority",
                        "The likeliest, and seats for those that are surest first (Riquelme et al., 2021).",
                        images::make_batch_priority());
    catalogue.add<Gate>("soft", "No choice: tokens are mixed into slots (Puigcerver et al., 2023).",
                        images::make_soft());
    catalogue.add<Objective>("image_classes", "The class of an image; top-1 and top-5 are measured.",
                             images::make_classes());
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("images", Images)
