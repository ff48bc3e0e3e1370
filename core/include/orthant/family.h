// PublishedFamily: models of Hugging Face's transformers that a kind of model can be. A noun of the catalogue, by the
// model_type of a config.json: `orthant import` and `export` ask for it. The core's own kind has its families in
// apps/pretrained.
//
// A family states once which key of config.json is which of ours. Read by that, a config.json becomes our keys; written
// by it, our settings become a config.json. A key of theirs that the statement does not name is refused, and so is a
// setting of the model that theirs cannot say.
//
// Thread safety: methods are const, pure functions, and safe to call at the same time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <orthant/abi/family.h>
#include <orthant/table.h>

namespace orthant {

struct Settings;

// A config.json and our tables, tied key by key. Keys of ours are "model.d_model".
class FamilyKeys {
 public:
  virtual ~FamilyKeys() = default;
  virtual bool reading() const = 0;  // else writing
  // theirs = ours. absent: what a missing or null key of theirs means; without it the key must be there.
  virtual void integer(const char* theirs, const char* ours, std::optional<std::int64_t> absent = {}) = 0;
  virtual void number(const char* theirs, const char* ours, std::optional<double> absent = {}) = 0;
  virtual void flag(const char* theirs, const char* ours, std::optional<bool> absent = {}) = 0;
  // A key that must have this value, theirs if it is there: nothing else is done.
  virtual void theirs(const char* key, const Value& value) = 0;
  virtual void ours(const char* key, const Value& value) = 0;
  // Keys that say nothing about the forward pass.
  virtual void besides(std::initializer_list<const char*> theirs) = 0;
  virtual void ours_besides(std::initializer_list<const char*> ours) = 0;
  // REQUIRES: reading. Theirs, where it is a number, a flag or a text; what ours becomes.
  virtual std::optional<Value> take(const char* theirs) = 0;
  virtual void set(const char* ours, const Value& value) = 0;
  // REQUIRES: writing. Ours, with zeros that stand for other settings replaced; what theirs becomes.
  virtual std::int64_t our_integer(const char* ours) = 0;
  virtual double our_number(const char* ours) = 0;
  virtual bool our_flag(const char* ours) = 0;
  virtual std::string our_text(const char* ours) = 0;
  virtual void put(const char* theirs, const Value& value) = 0;
  virtual void refuse(const std::string& why) = 0;  // a line that begins with the key
};

class PublishedFamily {
 public:
  static constexpr const char* noun = "family";
  virtual ~PublishedFamily() = default;
  virtual std::string kind() const = 0;          // model.kind
  virtual std::string architecture() const = 0;  // the class in transformers
  virtual void state(FamilyKeys& keys) const = 0;
  // What a parameter of ours is called there, with the same shape and order.
  virtual std::string tensor(const Settings& settings, const std::string& ours) const = 0;
  // Further names of tensors in files: {theirs, the name}. A copy that is equal is passed over; none is written.
  virtual std::vector<std::pair<std::string, std::string>> copies(const Settings&) const { return {}; }
};

}  // namespace orthant
