// Where an encoder-decoder's pairs come from: sources "spans", "prefix", "translation" and "rewriting".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <orthant/source.h>

#include "settings.h"

namespace orthant::encoder_decoder {

// The decoder is asked for each token of `told` from those before it; before the first stands model.start_token.
inline void begin_target(SequenceDocument& target, std::vector<std::int32_t> told, const StackKeys& keys) {
  target.token = {static_cast<std::int32_t>(keys.start_token)};
  target.token.insert(target.token.end(), told.begin(), told.end() - 1);
  target.label = std::move(told);
}

// Sequences of `length` tokens of the text that [data] names, as source "text" has them. Errors: as that, and
// SettingError for documents that are not a stream.
std::unique_ptr<Sequences> open_text(const Settings& settings, std::int64_t length);
std::optional<std::int64_t> text_vocabulary(const Settings& settings);

// Span corruption of a text (Raffel et al., 2020, section 3.1.4): runs of tokens are left out of the source, each
// behind a sentinel, and the target is what was left out.
std::shared_ptr<const Source> make_span_source();
// The beginning of a text as the source, and the rest as the target, cut by chance: the prefix language model that T5
// and UL2 learn from (Raffel et al., 2020, section 3.2.3; Tay et al., "UL2", 2022, the S-denoiser).
std::shared_ptr<const Source> make_prefix_source();
// Pairs of texts in files of JSON lines.
std::shared_ptr<const Source> make_translation_source();
// Words of random letters as the source, and as the target what a rule makes of them: a task with one right answer.
std::shared_ptr<const Source> make_rewriting_source();

}  // namespace orthant::encoder_decoder
