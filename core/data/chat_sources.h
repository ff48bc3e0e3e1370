// The sources "chat" and "pairs": conversations, and pairs of answers, in JSON lines. What they read and how is the
// module's (plugins/tokenizer/chat), which is opened when one of them is used.
#pragma once

#include <orthant/catalogue.h>
#include <orthant/settings.h>

#include <string>
#include <vector>

namespace orthant {

void add_chat_sources(Catalogue& catalogue);

// Whether the data of a run are read by data.chat_template.
bool reads_by_template(const Settings& settings);

// data.chat_template = "model": the template that the model brings, beside its tokenizer.
inline constexpr const char* model_template_name = "model";

// What the rows of conversations and pairs have beside what is read of them, a sentence for each file: all of it is
// read for that.
std::vector<std::string> notes_of_rows(const Settings& settings);

}  // namespace orthant
