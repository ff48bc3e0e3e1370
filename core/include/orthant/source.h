// Source: where the tokens come from. Chosen by data.source.
//
// A source gives sequence i, a pure function of the settings and i: it knows neither ranks, nor steps, nor batches. The
// core deals sequences to steps and ranks: sequence g of step s is number s * batch.sequences + g, or
// sequences_before(s) + g where the batch grows (settings.h). A source of N training sequences is read in epochs, each
// in an order of its own, drawn from run.seed without replacement; one without a number is endless and is read in
// order.
//
//   class Mine final : public Source { ... };
//   catalogue.add<Source>("mine", "One sentence.", std::make_shared<Mine>());   // in Plugin::add_to
//
// Thread safety: a Source is shared by all ranks of a process, and so may Sequences be: const methods are safe to call
// at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <orthant/abi/source.h>
#include <orthant/keys.h>

namespace orthant {

struct Settings;

// Tokens that see each other and none of another document.
struct SequenceDocument {
  std::vector<std::int32_t> token;  // ids in [0, vocabulary)
  // What each token should predict; -1: it does not count in the loss. Empty: the token after it, for the last one -1.
  std::vector<std::int32_t> label = {};
  std::vector<float> value = {};  // numbers of each token (Space::columns), token after token
  // What stands beside it in each further token space of the model, a token at least.
  std::vector<SequenceDocument> spaces = {};
};

// One after another from position 0 on; positions that are left are padding. At most data.sequence_length tokens.
using Sequence = std::vector<SequenceDocument>;

// Sequence `number` of a source as its epoch `epoch`, from 0 on, has it; 0 of a source that is endless.
struct EpochSequence {
  std::int64_t number = 0, epoch = 0;
  bool operator==(const EpochSequence&) const = default;
};

class Sequences {
 public:
  virtual ~Sequences() = default;
  virtual std::string name() const = 0;         // for messages: "'a.txt' and 2 more files"
  virtual std::int64_t vocabulary() const = 0;  // ids are below it; model.vocab_size is at least as much
  // Nothing: there is no end.
  virtual std::optional<std::int64_t> training_sequences() const { return std::nullopt; }
  virtual Sequence training(std::int64_t i) const = 0;
  // What a step is given: an image, say, that each epoch crops at another place. By default every epoch has the same.
  virtual Sequence in_epoch(const EpochSequence& of) const { return training(of.number); }
  // Soon to be asked for, most likely: a source that takes long over a sequence may begin with these, beside the
  // training. It changes nothing that is given. By default nothing.
  virtual void expect(std::span<const EpochSequence> /*soon*/) const {}
  // How many sequences the fixed held-out set has; 0: there is none.
  virtual std::int64_t validation_sequences() const = 0;
  virtual Sequence validation(std::int64_t i) const = 0;
  // What the user should know before the run starts, a sentence each.
  virtual std::vector<std::string> notes() const { return {}; }
};

class Source {
 public:
  static constexpr const char* noun = "source";
  virtual ~Source() = default;
  // The keys that it reads beside those that every kind has (keys.h). By default none.
  virtual std::vector<KindKey> keys() const { return {}; }
  // Errors: ConfigError for what the user can change: files that are missing, damaged or too short, a vocabulary that
  // does not fit.
  virtual std::unique_ptr<Sequences> open(const Settings& settings) const = 0;
  // The same for commands that start nothing: writes no file. Nothing: all that can be told without writing is right.
  virtual std::unique_ptr<Sequences> peek(const Settings& settings) const { return open(settings); }
  // What model.vocab_size = 0 stands for. Nothing: the source does not say. Errors: as for open.
  virtual std::optional<std::int64_t> vocabulary(const Settings&) const { return std::nullopt; }
  // The names of the token spaces that its sequences are of: those of the model (ModelKind::spaces).
  virtual std::vector<std::string> spaces(const Settings&) const { return {"tokens"}; }
  // Whether it reads the files of data.path: then there must be some.
  virtual bool reads_files() const { return false; }
  // A validation set (data.validation_path) is a source of its own that is opened with the one file as data.path.
  // True: with data.validation_fraction = 1 all of it is held out and none trained on, and the set is what validation()
  // gives. False: it is opened with the fraction 0, and the set is up to data.validation_sequences of its training
  // sequences, evenly spread; it must have a number of them.
  virtual bool holds_all_out() const { return false; }
};

}  // namespace orthant
