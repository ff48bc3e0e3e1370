// A model of one's own that sees: a decoder whose sequences begin with the patches of a picture and go on with its
// caption, and the pictures to learn from. The guide is docs/guides/a-model-of-your-own.md.
//
//   x_t = E[token_t] + W v_t        v_t: the pixels of patch t, 0 for a word
//
//   [data]
//   source = "captions"
//   sequence_length = 14     # nine patches, and at most five words
//   [model]
//   kind = "captioner"
//   [plugins.captions]
//   noise = 0.2
//
// Links and layers are those of the core's decoder, but for the first. Nothing here knows of ranks.
// [plugins.captions] fault plants a mistake, for the tests.
#include <orthant/catalogue.h>
#include <orthant/model.h>
#include <orthant/part.h>
#include <orthant/plugin.h>
#include <orthant/random.h>
#include <orthant/settings.h>
#include <orthant/source.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace orthant;

struct Options {
  double noise;
  std::string fault;  // empty: none
};

// --- pictures: a shape of a colour somewhere on a noisy ground, 12 x 12 pixels of three colours, in patches of 4 x 4.

constexpr std::int64_t side = 12, patch = 4, across = side / patch, patches = across * across;
constexpr std::int64_t numbers = patch * patch * 3;  // of a patch
constexpr const char* space_name = "patches and words";

// Ids: the picture's, the end of a caption, and the words: three colours, three shapes, three rows, three columns.
constexpr std::int32_t picture_id = 0, end_id = 1, first_word = 2, ids = first_word + 12, words = 5;

struct Picture {
  std::int32_t colour, shape, row, column;
  std::int64_t y, x;  // of the shape's upper left corner; it is 4 pixels wide

  Picture(const RandomKey& key, std::uint64_t number) {
    const auto draw = [&](std::uint64_t what, std::uint64_t bound) {
      return static_cast<std::int64_t>(below(key, number * 1024 + what, bound));
    };
    colour = static_cast<std::int32_t>(draw(0, 3));
    shape = static_cast<std::int32_t>(draw(1, 3));
    y = draw(2, side - 3);
    x = draw(3, side - 3);
    row = static_cast<std::int32_t>(y / 3);
    column = static_cast<std::int32_t>(x / 3);
  }

  // A filled square, a cross, or a frame.
  bool covers(std::int64_t at_y, std::int64_t at_x) const {
    const std::int64_t v = at_y - y, h = at_x - x;
    if (v < 0 || v > 3 || h < 0 || h > 3) {
      return false;
    }
    const bool middle_v = v == 1 || v == 2, middle_h = h == 1 || h == 2;
    return shape == 0 || (shape == 1 && (middle_v || middle_h)) || (shape == 2 && !(middle_v && middle_h));
  }

  std::vector<std::int32_t> caption() const {
    return {first_word + colour, first_word + 3 + shape, first_word + 6 + row, first_word + 9 + column, end_id};
  }
};

class Captions final : public Sequences {
 public:
  Captions(const Options& options, const Settings& s)
      : noise_(static_cast<float>(options.noise)),
        shifted_(options.fault != "not_shifted"),
        seed_(s.run.seed),
        held_out_(s.data.validation_sequences) {
    if (s.data.sequence_length < patches + words - 1) {
      throw SettingError("data.sequence_length", fmt::format("[data] sequence_length: a picture and its caption take "
                                                             "{} positions\nwrite as many",
                                                             patches + words - 1));
    }
  }
  std::string name() const override { return "pictures and captions"; }
  std::int64_t vocabulary() const override { return ids; }
  Sequence training(std::int64_t i) const override { return {captioned(static_cast<std::uint64_t>(i))}; }
  std::int64_t validation_sequences() const override { return held_out_; }
  Sequence validation(std::int64_t i) const override {  // numbers that no training sequence has
    return {captioned((std::uint64_t{1} << 40) + static_cast<std::uint64_t>(i))};
  }

 private:
  // Nine patches, then the caption but for its last word. The last patch is asked for the first word.
  SequenceDocument captioned(std::uint64_t number) const {
    const RandomKey key{seed_, Purpose::synthetic, 0xCA70u, 0};
    const Picture picture(key, number);
    const std::vector<std::int32_t> caption = picture.caption();
    SequenceDocument document;
    document.token.assign(patches, picture_id);
    document.label.assign(patches, -1);
    if (shifted_) {
      document.label.back() = caption.front();
    }
    for (std::size_t w = 0; w + 1 < caption.size(); ++w) {
      document.token.push_back(caption[w]);
      document.label.push_back(caption[shifted_ ? w + 1 : w]);
    }
    document.value.assign(document.token.size() * numbers, 0);  // words have no pixels
    for (std::int64_t y = 0; y < side; ++y) {
      for (std::int64_t x = 0; x < side; ++x) {
        for (std::int64_t c = 0; c < 3; ++c) {
          const std::int64_t of = y / patch * across + x / patch;
          const std::int64_t at = (y % patch * patch + x % patch) * 3 + c;
          const auto pixel = static_cast<std::uint64_t>(16 + (y * side + x) * 3 + c);
          const float lit = picture.covers(y, x) && c == picture.colour ? 1 : 0;
          document.value[static_cast<std::size_t>(of * numbers + at)] =
              lit + noise_ * normal(key, number * 1024 + pixel);
        }
      }
    }
    return document;
  }

  float noise_;
  bool shifted_;
  std::uint64_t seed_;
  std::int64_t held_out_;
};

class CaptionSource final : public Source {
 public:
  explicit CaptionSource(Options options) : options_(std::move(options)) {}
  std::vector<std::string> spaces(const Settings&) const override { return {space_name}; }
  std::optional<std::int64_t> vocabulary(const Settings&) const override { return ids; }
  std::unique_ptr<Sequences> open(const Settings& s) const override { return std::make_unique<Captions>(options_, s); }

 private:
  Options options_;
};

// --- the model

constexpr const char* matrix_name = "model.embed_patches.weight";

class SeeingEmbedding final : public Layer {
 public:
  SeeingEmbedding(std::unique_ptr<Layer> words_layer, ParamRef matrix, bool blind)
      : words_(std::move(words_layer)), matrix_(matrix), blind_(blind) {}

  Bundle forward(const StepContext& ctx, const Bundle& in, Saved& saved) override {
    Bundle x = words_->forward(ctx, in, saved);
    if (!blind_) {
      ctx.stream.add(x.front(), linear(ctx, pixels(ctx), matrix_.weight()));
    }
    return x;
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    if (!blind_ && matrix_.wants_grad()) {  // dW += dy^T v: nobody asks for the gradient of pixels
      ctx.stream.gemm(matrix_.grad(), dy.front(), pixels(ctx), {.transpose_a = true, .beta = 1});
    }
    return words_->backward(ctx, dy, saved);
  }

 private:
  // The numbers of the tokens that this rank holds where norms are, in the type that it computes in.
  static Tensor pixels(const StepContext& ctx) {
    const Tensor value = ctx.rows_in(Region::norm, ctx.batch.value);  // f32 [T, numbers]
    const Tensor v = ctx.device().empty(ctx.compute(), value.shape());
    ctx.stream.cast(v, value);
    return v;
  }

  std::unique_ptr<Layer> words_;
  ParamRef matrix_;  // [d, numbers]
  bool blind_;
};

class Captioner final : public ModelKind {
 public:
  explicit Captioner(Options options) : options_(std::move(options)) {}

  std::vector<Space> spaces(const Settings& s) const override {
    return {{.name = space_name, .positions = s.data.sequence_length, .columns = numbers}};
  }
  std::vector<Link> links(const Settings& s) const override {
    std::vector<Link> links = decoder(s).links(s);
    Link& embedding = links.front();
    embedding.parameters.push_back({.name = "patches"});
    embedding.parameters.back().params = {{.name = matrix_name,
                                           .global = {s.model.d_model, numbers},
                                           .region = Region::norm,
                                           .std = static_cast<float>(s.model.init_std)}};
    embedding.flops += 2 * static_cast<double>(s.model.d_model * numbers);
    return links;
  }
  std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const override {
    std::unique_ptr<Layer> layer = decoder(plan.settings()).make(link, parameters, plan);
    if (link.number > 0) {
      return layer;
    }
    return std::make_unique<SeeingEmbedding>(std::move(layer), parameters.ref(matrix_name), options_.fault == "blind");
  }

 private:
  static const ModelKind& decoder(const Settings& s) { return s.catalogue->get<ModelKind>("decoder"); }
  Options options_;
};

class CaptionsPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "noise", .default_value = 0.2, .help = "Deviation of the pixels' noise.", .minimum = 0},
            {.name = "fault",
             .default_value = std::string(),
             .help = "A mistake to make; empty: none.",
             .choices = {"", "blind", "not_shifted"}}};
  }
  void add_to(Catalogue& catalogue, const Table& table) override {
    const Options options{table.number("noise"), table.text("fault")};
    catalogue.add<Source>("captions", "Pictures of shapes, and what they show.",
                          std::make_shared<CaptionSource>(options));
    catalogue.add<ModelKind>("captioner", "A decoder whose sequences begin with the patches of a picture.",
                             std::make_shared<Captioner>(options));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("captions", CaptionsPlugin)
