#include "apps/eval/pairs.h"

#include <orthant/error.h>
#include <orthant/settings.h>

#include <utility>

#include "core/base/json.h"
#include "core/data/lines.h"
#include "core/data/text_file.h"

namespace orthant {

ScoredSequence PairReader::sequence(std::string_view source, std::string_view target, const std::string& where) const {
  std::vector<std::int32_t> told = tokenizer_.encode(target);
  const std::vector<std::int32_t> ends = kind_.ends(settings_);
  if (!ends.empty() && (told.empty() || told.back() != ends.front())) {
    told.push_back(ends.front());
  }
  require(!told.empty(), "{}: the target has no token", where);
  std::vector<std::int32_t> ids = tokenizer_.encode(source);
  require(!ids.empty() || !ends.empty(), "{}: the source has no token", where);
  SequenceDocument asked;
  try {
    asked = kind_.asked(settings_, std::move(ids));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", where, error.what()));
  }
  ScoredSequence made{.token = std::move(asked.token), .label = {}, .source = std::move(asked.spaces.at(0).token)};
  made.label.assign(made.token.size() - 1, -1);
  made.token.insert(made.token.end(), told.begin(), told.end() - 1);
  made.label.insert(made.label.end(), told.begin(), told.end());
  if (static_cast<std::int64_t>(made.token.size()) > positions_) {
    throw ConfigError(fmt::format("{}: a target of {} tokens, and a window has {} positions: give a larger --length",
                                  where, made.token.size(), positions_));
  }
  return made;
}

PairReader::File PairReader::file(const std::string& path) const {
  if (!is_json_lines(path)) {
    throw ConfigError(
        fmt::format("'{}': a model of kind \"{}\" is asked for targets, and a text has none: give JSON "
                    "lines (.jsonl) with 'source' and 'target'",
                    path, settings_.model.kind));
  }
  File all;
  for_each_line(path, [&](std::string_view line, const std::string& where) {
    const Json json = parse_json(std::as_bytes(std::span(line)), where);
    require(json.is_object() && json.contains("source") && json.contains("target"),
            "{}: a model of kind \"{}\" is asked for targets: expected an object with 'source' and 'target'", where,
            settings_.model.kind);
    const std::string target = text_at(json, "target", where);
    all.pairs.push_back(sequence(text_at(json, "source", where), target, where));
    all.bytes += static_cast<std::int64_t>(target.size());
    for (const std::int32_t label : all.pairs.back().label) {
      all.tokens += label >= 0 ? 1 : 0;
    }
  });
  if (all.pairs.empty()) {
    throw ConfigError(fmt::format("'{}' has no pair", path));
  }
  return all;
}

}  // namespace orthant
