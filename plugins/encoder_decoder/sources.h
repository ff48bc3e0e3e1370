// Where an encoder-decoder's pairs come from: sources "spans" and "rewriting".
#pragma once

#include <memory>

#include <orthant/source.h>

namespace orthant::encoder_decoder {

// Span corruption of a text (Raffel et al., 2020, section 3.1.4): runs of tokens are left out of the source, each
// behind a sentinel, and the target is what was left out.
std::shared_ptr<const Source> make_span_source();
// Words of random letters as the source, and as the target what a rule makes of them: a task with one right answer.
std::shared_ptr<const Source> make_rewriting_source();

}  // namespace orthant::encoder_decoder
