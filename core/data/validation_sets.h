// ValidationSets: the files of data.validation_path, each a set of sequences that is measured by itself.
#pragma once

#include <orthant/settings.h>
#include <orthant/source.h>

#include <memory>
#include <string>
#include <vector>

#include "core/data/batch.h"

namespace orthant {

// A set is what data.source makes of its one file by the settings of [data], all of it held out: up to
// data.validation_sequences sequences, evenly spread over the file, the same at each validation.
class ValidationSets {
 public:
  // may_write: by Source::open, else by Source::peek; a set that only a written file could give is left out then.
  // Errors: SettingError for data.validation_path, with the file's place in it: a source without files, a file that is
  // missing, empty, damaged or too short, of another tokenizer than the data, or without a token to measure.
  ValidationSets(const Settings& settings, bool may_write);
  ~ValidationSets();
  ValidationSets(ValidationSets&&) noexcept;

  std::vector<NamedSet> sets() const;
  // What the user should know, a sentence each.
  std::vector<std::string> notes() const { return notes_; }

 private:
  class Set;
  std::vector<std::unique_ptr<Set>> sets_;
  std::vector<std::string> notes_;
};

}  // namespace orthant
