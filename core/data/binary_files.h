// Files that data.source = "text" would read byte by byte, and that are no text.
#pragma once

#include <orthant/settings.h>

#include <string>
#include <vector>

namespace orthant {

// Refuses token files and Megatron's indices: their bytes are no text. Files that cannot be read are left to others.
// Errors: ConfigError naming the file and the source that reads it.
void refuse_token_files(const std::vector<std::string>& paths);

// A sentence for each file that is read otherwise than somebody might think: JSON rows that are read as bytes, braces
// and all, or by the key "content"; and one with a zero byte among its first 64 KiB, which no text has: a SentencePiece
// model, weights, an archive. A model of bytes may want it so.
std::vector<std::string> notes_of_texts(const std::vector<std::string>& paths, const DataSettings& data);

}  // namespace orthant
