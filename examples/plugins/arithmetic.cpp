// A toy task as a source of tokens: sums of two numbers, "037+512=0549.", of which only the answer counts in the loss.
//
//   [data]
//   source = "arithmetic"
//   [plugins.arithmetic]
//   digits = 3
//
// Every pair of numbers is one problem. Some are held out; the others are trained on, each once an epoch.
// [plugins.arithmetic] fault plants a mistake, for the tests of `orthant plugins --check`.
#include <orthant/plugin.h>
#include <orthant/settings.h>
#include <orthant/source.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

namespace {

using namespace orthant;

// Ids: the ten digits, then these.
constexpr std::int32_t plus = 10, equals = 11, stop = 12, ids = 13;

class Sums final : public Sequences {
 public:
  Sums(std::int64_t digits, std::string fault, const Settings& settings) : digits_(digits), fault_(std::move(fault)) {
    for (std::int64_t i = 0; i < digits; ++i) {
      bound_ *= 10;
    }
    held_out_ = std::min(settings.data.validation_sequences, bound_ * bound_ / 10);
    if (3 * digits + 4 > settings.data.sequence_length) {
      throw SettingError("data.sequence_length",
                         fmt::format("a sum of {} digits takes {} tokens", digits, 3 * digits + 4));
    }
  }

  std::string name() const override { return "arithmetic"; }
  std::int64_t vocabulary() const override { return ids; }
  std::optional<std::int64_t> training_sequences() const override { return bound_ * bound_ - held_out_; }
  std::int64_t validation_sequences() const override { return held_out_; }
  Sequence training(std::int64_t i) const override {
    if (fault_ == "order") {
      i = (i + calls_++) % *training_sequences();
    }
    return problem(i + held_out_);
  }
  Sequence validation(std::int64_t i) const override { return problem(i); }

 private:
  // Neighbouring numbers are far apart: what is held out is of all sizes.
  Sequence problem(std::int64_t i) const {
    const std::int64_t all = bound_ * bound_, number = static_cast<std::int64_t>(i * 7919 % all);
    const std::int64_t a = number / bound_, b = number % bound_;
    SequenceDocument document;
    put(document, a, digits_);
    document.token.push_back(plus);
    put(document, b, digits_);
    const std::size_t question = document.token.size();
    document.token.push_back(equals);
    put(document, a + b, digits_ + 1);
    document.token.push_back(fault_ == "range" ? ids + 7 : stop);
    document.label.assign(document.token.begin() + 1, document.token.end());
    document.label.push_back(-1);
    std::fill_n(document.label.begin(), question, -1);
    return {document};
  }
  static void put(SequenceDocument& to, std::int64_t number, std::int64_t digits) {
    for (std::int64_t place = digits - 1; place >= 0; --place) {
      std::int64_t power = 1;
      for (std::int64_t i = 0; i < place; ++i) {
        power *= 10;
      }
      to.token.push_back(static_cast<std::int32_t>(number / power % 10));
    }
  }

  std::int64_t digits_, bound_ = 1, held_out_ = 0;
  std::string fault_;
  mutable std::atomic<std::int64_t> calls_ = 0;  // for the fault: a source has no memory
};

class Arithmetic final : public Source {
 public:
  Arithmetic(std::int64_t digits, std::string fault) : digits_(digits), fault_(std::move(fault)) {}
  std::unique_ptr<Sequences> open(const Settings& settings) const override {
    return fault_ == "nothing" ? nullptr : std::make_unique<Sums>(digits_, fault_, settings);
  }

 private:
  std::int64_t digits_;
  std::string fault_;
};

class ArithmeticPlugin final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "digits",
             .default_value = std::int64_t{2},
             .help = "Digits of each of the two numbers.",
             .minimum = 1,
             .maximum = 4},
            {.name = "fault", .default_value = std::string(), .help = "A mistake to plant; empty: none."}};
  }
  void add_to(Catalogue& catalogue, const Table& config) override {
    catalogue.add<Source>("arithmetic", "Sums of two numbers.",
                          std::make_shared<Arithmetic>(config.integer("digits"), config.text("fault")));
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("arithmetic", ArithmeticPlugin)
