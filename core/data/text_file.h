// TextFile: the documents of a file of plain text, or of JSON lines.
//
// Thread safety: const access from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mapped_file.h"
#include "core/data/corpus.h"

namespace orthant {

struct TextOptions {
  std::string separator = "\n\n\n";  // between documents of plain text; empty: a file is one document
  std::string text_key = {};         // of a JSON row: whose value is the document; empty: text, else content
  bool whole_lines = false;          // each JSON row is a document as it stands, whatever the file's name
};

// Whether the file is one of JSON rows (json_rows.h), an object each: its name ends in .jsonl or .json.
bool is_json_lines(const std::string& path);

class TextFile {
 public:
  // Errors: ConfigError for a file that is missing, empty, or no text (not_text.h), and as json_rows.
  TextFile(const std::string& path, const TextOptions& options);

  const MappedFile& file() const { return file_; }
  // Bytes of the file, in order: what lies between separators, or a row. Blank lines and empty texts are left out.
  const std::vector<Document>& documents() const { return documents_; }
  // A document's text, which may stand in `decoded`. Errors: ConfigError for a row that is no JSON object with a
  // string under text_key, by its line.
  std::string_view text(const Document& document, std::string& decoded) const;
  // "'a.jsonl', line 3", for messages. Counts the lines before.
  std::string place(const Document& document) const;

 private:
  MappedFile file_;
  TextOptions options_;
  bool json_lines_;
  std::vector<Document> documents_;
};

}  // namespace orthant
