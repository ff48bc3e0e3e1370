#include "classes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <orthant/catalogue.h>
#include <orthant/model.h>

#include "settings.h"

namespace orthant::images {
namespace {

// What the head's rows are to an image, on this rank.
struct ImageBatch final : ObjectiveBatch {
  Tensor label;                     // i32 [images]; -1: padding
  Tensor share;                     // f32 [T]: of each row in its image's logits
  std::vector<std::int32_t> image;  // of each row; on the host, as offsets follow from it
};

HostBatch rows_of_head(const HostBatch& whole, const Plan& plan) {
  return held_rows(whole, plan, Region::head);
}

// pooled f32 [images, V] += share[t] * logits[t] for the rows from `begin` on.
void pool(const Tensor& pooled, const Tensor& logits, const Tensor& share, std::int64_t begin,
          const std::vector<std::int32_t>& image, Stream& s) {
  std::vector<std::int32_t> of(image.begin() + begin, image.begin() + begin + logits.dim(0));
  s.apply({.name = "images/pool",
           .inputs = {pooled, logits, share},
           .outputs = {pooled},
           .host = [of = std::move(of), columns = static_cast<std::size_t>(logits.dim(1))](const HostArguments& a) {
             const auto logit = a.input<float>(1), weight = a.input<float>(2);
             const auto to = a.output<float>(0);
             for (std::size_t t = 0; t < of.size(); ++t) {
               for (std::size_t v = 0; weight[t] != 0 && v < columns; ++v) {
                 to[static_cast<std::size_t>(of[t]) * columns + v] += weight[t] * logit[t * columns + v];
               }
             }
           }});
}

// dlogits f32 [rows, V] = share[t] * d[image of t].
void spread(const Tensor& dlogits, const Tensor& d, const Tensor& share, std::int64_t begin,
            const std::vector<std::int32_t>& image, Stream& s) {
  std::vector<std::int32_t> of(image.begin() + begin, image.begin() + begin + dlogits.dim(0));
  s.apply({.name = "images/spread",
           .inputs = {d, share},
           .outputs = {dlogits},
           .host = [of = std::move(of), columns = static_cast<std::size_t>(d.dim(1))](const HostArguments& a) {
             const auto from = a.input<float>(0), weight = a.input<float>(1);
             const auto to = a.output<float>(0);
             for (std::size_t t = 0; t < of.size(); ++t) {
               for (std::size_t v = 0; v < columns; ++v) {
                 to[t * columns + v] = weight[t] * from[static_cast<std::size_t>(of[t]) * columns + v];
               }
             }
           }});
}

// f64 [images, 2]: the label's logit, and the sum of all, of the columns that this rank has.
Tensor own_sums(const Tensor& logits, const Tensor& label, std::int64_t first, Stream& s) {
  const Tensor sums = s.device().empty(DType::f64, {logits.dim(0), 2});
  s.apply({.name = "images/own_sums",
           .inputs = {logits, label},
           .outputs = {sums},
           .host = [first, columns = logits.dim(1)](const HostArguments& a) {
             const auto logit = a.input<float>(0);
             const auto of = a.input<std::int32_t>(1);
             const auto to = a.output<double>(0);
             for (std::size_t i = 0; i < of.size(); ++i) {
               const auto row = logit.subspan(i * static_cast<std::size_t>(columns), static_cast<std::size_t>(columns));
               const std::int64_t own = of[i] - first;
               const bool here = of[i] >= 0 && own >= 0 && own < columns;
               to[2 * i] = here ? static_cast<double>(row[static_cast<std::size_t>(own)]) : 0;
               to[2 * i + 1] = 0;
               for (const float x : row) {
                 to[2 * i + 1] += static_cast<double>(x);
               }
             }
           }});
  return sums;
}

// f64 [images]: the classes among these columns that are likelier than the label's.
Tensor likelier(const Tensor& logits, const Tensor& label, const Tensor& sums, std::int64_t first, Stream& s) {
  const Tensor count = s.device().empty(DType::f64, {logits.dim(0)});
  s.apply({.name = "images/likelier",
           .inputs = {logits, label, sums},
           .outputs = {count},
           .host = [first, columns = logits.dim(1)](const HostArguments& a) {
             const auto logit = a.input<float>(0);
             const auto of = a.input<std::int32_t>(1);
             const auto own = a.input<double>(2);
             const auto to = a.output<double>(0);
             for (std::size_t i = 0; i < of.size(); ++i) {
               to[i] = 0;
               for (std::int64_t v = 0; v < columns; ++v) {
                 const double x =
                     static_cast<double>(logit[i * static_cast<std::size_t>(columns) + static_cast<std::size_t>(v)]);
                 to[i] += x > own[2 * i] || (x == own[2 * i] && first + v < of[i]) ? 1 : 0;
               }
             }
           }});
  return count;
}

class Classes final : public Objective {
 public:
  std::vector<KindKey> keys() const override { return ClassKeys::keys().declared(); }
  bool implied(const Settings& s) const override {
    if (!s.catalogue->has<ModelKind>(s.model.kind)) {
      return false;
    }
    const std::vector<Space> spaces = s.catalogue->get<ModelKind>(s.model.kind).spaces(s);
    return !spaces.empty() && spaces.front().name == patch_space;
  }
  std::string unit(const Settings&) const override { return "nats per image"; }
  bool over_sequences(const Settings&) const override { return true; }
  std::vector<std::string> sums(const Settings&) const override { return {"loss", "top1", "top5"}; }
  std::vector<std::string> counts(const Settings&) const override { return {"images"}; }

  std::shared_ptr<const ObjectiveBatch> upload(const HostBatch& whole, const Plan& plan, Stream& s) const override {
    auto batch = std::make_shared<ImageBatch>();
    const HostBatch rows = rows_of_head(whole, plan);
    const bool of_token = has_class_token(plan.settings());
    std::vector<std::int32_t> label;
    for (std::int64_t i = 0; i < whole.sequences; ++i) {
      label.push_back(whole.label[static_cast<std::size_t>(i * whole.positions)]);
    }
    std::vector<float> share;
    for (std::size_t t = 0; t < rows.token.size(); ++t) {
      const std::int64_t image = static_cast<std::int64_t>(t) / rows.positions;
      batch->image.push_back(static_cast<std::int32_t>(image));
      const float whole_share =
          of_token ? (rows.token[t] == class_token ? 1.0f : 0.0f) : 1.0f / static_cast<float>(whole.positions);
      share.push_back(rows.valid[t] == 0 ? 0.0f : whole_share);
    }
    batch->label = s.device().empty(DType::i32, {whole.sequences});
    batch->share = s.device().empty(DType::f32, {static_cast<std::int64_t>(share.size())});
    s.upload(batch->label, label.data());
    s.upload(batch->share, share.data());
    return batch;
  }

  void run(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx) const override {
    Stream& s = ctx.stream;
    const ImageBatch& batch = static_cast<const ImageBatch&>(*in.own);
    const std::int64_t images = batch.label.dim(0), tokens = rows.tokens(), chunk = rows.chunk();
    require(static_cast<std::int64_t>(batch.image.size()) == tokens,
            "image_classes: {} rows of the head, and a batch of {}", tokens, batch.image.size());
    Tensor pooled;
    for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
      const std::int64_t count = std::min(chunk, tokens - begin);
      const Tensor logits = rows.logits(begin, count);
      if (!pooled.defined()) {
        pooled = ctx.device().empty(DType::f32, {images, logits.dim(1)});
        s.fill(pooled, 0);
      }
      pool(pooled, logits, batch.share.rows(begin, count), begin, batch.image, s);
    }
    rows.sum_over_sequences(pooled);
    const Tensor sums = own_sums(pooled, batch.label, rows.first_column(), s);
    rows.sum_over_columns(sums);
    const Tensor before = likelier(pooled, batch.label, sums, rows.first_column(), s);
    rows.sum_over_columns(before);
    const Tensor entropy = ctx.device().empty(DType::f32, {images});
    rows.cross_entropy(entropy, pooled, batch.label, 1);  // softmax - onehot
    judge(in, ctx, pooled, entropy, sums, before, batch.label, rows.first_column());
    for (std::int64_t begin = 0; ctx.training && begin < tokens; begin += chunk) {
      const std::int64_t count = std::min(chunk, tokens - begin);
      const Tensor dlogits = ctx.device().empty(DType::f32, {count, pooled.dim(1)});
      spread(dlogits, pooled, batch.share.rows(begin, count), begin, batch.image, s);
      rows.learn(begin, dlogits);
    }
  }

  ObjectiveReport report(const Settings&, std::span<const double> sums, std::span<const std::int64_t> counts,
                         bool) const override {
    const double images = static_cast<double>(counts[0]);
    return {.loss = sums[0] / images, .figures = {{"top1", sums[1] / images}, {"top5", sums[2] / images}}};
  }
  std::string told(const std::map<std::string, double>& figures, bool) const override {
    return fmt::format("top1 {:.1f}%", 100 * figures.at("top1"));
  }

 private:
  // Adds up losses and hits; g, softmax - onehot, becomes the gradient of the pooled logits.
  void judge(const ObjectiveInput& in, const StepContext& ctx, const Tensor& g, const Tensor& entropy,
             const Tensor& sums, const Tensor& before, const Tensor& label, std::int64_t first) const {
    const Settings& settings = ctx.settings();
    // What is measured is told without smoothing, so that runs with any can be compared.
    const double smoothing = ctx.training ? read_keys<ClassKeys>(kind_values(settings, "train")).label_smoothing : 0;
    const Tensor found = ctx.device().empty(DType::f64, {3, label.dim(0)});
    ctx.stream.apply({.name = "images/judge",
                      .inputs = {entropy, sums, before, label, g},
                      .outputs = {found, g},
                      .host = [smoothing, first, scale = static_cast<double>(ctx.loss_scale), columns = g.dim(1),
                               classes = static_cast<double>(settings.model.vocab_size)](const HostArguments& a) {
                        const auto ce = a.input<float>(0);
                        const auto own = a.input<double>(1), likelier_ones = a.input<double>(2);
                        const auto of = a.input<std::int32_t>(3);
                        const auto to = a.output<double>(0);
                        const auto d = a.output<float>(1);
                        const std::size_t all = of.size();
                        for (std::size_t i = 0; i < all; ++i) {
                          const bool counts = of[i] >= 0;
                          to[i] = counts
                                      ? static_cast<double>(ce[i]) + smoothing * (own[2 * i] - own[2 * i + 1] / classes)
                                      : 0;
                          to[all + i] = counts && likelier_ones[i] < 1 ? 1 : 0;
                          to[2 * all + i] = counts && likelier_ones[i] < 5 ? 1 : 0;
                          for (std::int64_t v = 0; v < columns; ++v) {
                            float& x = d[i * static_cast<std::size_t>(columns) + static_cast<std::size_t>(v)];
                            const double moved = (first + v == of[i] ? smoothing : 0) - smoothing / classes;
                            x = static_cast<float>(counts ? scale * (static_cast<double>(x) + moved) : 0);
                          }
                        }
                      }});
    // The ranks that hold parts of these images have all found the same: one of them counts it.
    for (std::int64_t i = 0; i < 3 && ctx.plan.counts_tokens(Region::head, true); ++i) {
      ctx.stream.sum(in.sums.slice(i, {1}), found.rows(i, 1));
    }
  }
};

}  // namespace

std::shared_ptr<const Objective> make_classes() {
  return std::make_shared<Classes>();
}

}  // namespace orthant::images
