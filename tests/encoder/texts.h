// Texts for the tests of encoders, written when they are first asked for.
#pragma once

#include <fstream>
#include <string>

#include "tests/config/temporary_folder.h"
#include "tests/support/experiment.h"

namespace orthant::test {

inline const std::string plugin_encoder = "[plugins.encoder]\n";

// Words of letters and digits, of a rule.
inline std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    for (int letter = 0; letter < 2 + i % 6; ++letter) {
      text += static_cast<char>('a' + (i * 7 + letter * (1 + i % 3)) % 26);
    }
    text += i % 9 == 8 ? ".\n" : " ";
  }
  return text;
}

// A file that stays until the tests end.
inline std::string file_of(const std::string& name, const std::string& text) {
  static const TemporaryFolder folder;
  const std::string path = folder.path(name);
  std::ofstream(path) << text;
  return path;
}

inline std::string text_path() {
  static const std::string path = file_of("words.txt", words(2000));
  return path;
}

// A modern encoder with experts over masked text; the experiment's other sizes.
inline Overrides modern_encoder() {
  return {R"(model.kind="bert")",    R"(data.source="masked")", "data.path=\"" + text_path() + "\"",
          "data.sequence_length=12", "data.mask_rate=0.3",      "model.vocab_size=260"};
}

// The first encoder: norms behind sums, learned positions, token types, biases, a tied head with a bias; dense.
inline Overrides first_encoder() {
  return joined(modern_encoder(),
                {"moe.experts=0", "model.post_norm=true", "model.embedding_norm=true", "model.dense_biases=true",
                 "model.biases=true", "model.output_bias=true", "model.token_types=2", "model.tie_embeddings=true",
                 "model.head_bias=true", R"(model.positions="learned")", R"(model.norm="layernorm")",
                 R"(model.activation="gelu")"});
}

inline std::string axis_table(const char* name, int size, const std::string& more = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", name, size, more);
}

}  // namespace orthant::test
