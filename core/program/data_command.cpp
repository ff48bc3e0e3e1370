// orthant data prepare FILES... -o OUT [--separator TEXT]; orthant data check FILES...: token files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "core/base/output.h"
#include "core/data/token_file.h"
#include "core/program/commands.h"

namespace orthant {
namespace {

struct DataOptions {
  std::vector<std::string> files;
  std::string output;
  std::string separator = "\\n\\n\\n";
};

// \n, \t, \0 and \\ as in C, since a shell passes them on as they are written.
std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      result += text[i];
      continue;
    }
    const char next = i + 1 < text.size() ? text[++i] : '\0';
    const std::size_t known = std::string("nt0\\").find(next);
    if (next == '\0' || known == std::string::npos) {
      throw ConfigError(
          fmt::format("--separator: a backslash in '{}' is not followed by n, t, 0 or a backslash", text));
    }
    result += "\n\t\0\\"[known];
  }
  return result;
}

void print(const std::string& path, const TokenFile& file) {
  put("{}: {} tokens of {} bytes, vocabulary {}, {} documents\n", path, file.tokens, file.width, file.vocabulary,
      file.documents.size());
}

}  // namespace

void add_data_command(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Make and check token files");
  data->require_subcommand(1);
  auto options = std::make_shared<DataOptions>();

  CLI::App* prepare = data->add_subcommand("prepare", "Write the bytes of text files as one token file");
  prepare->add_option("FILES", options->files, "Text files, in this order")->required();
  prepare->add_option("-o,--output", options->output, "The token file to write")->required();
  prepare
      ->add_option("--separator", options->separator, "What stands between two documents; \\n, \\t, \\0, \\\\ as in C")
      ->capture_default_str();
  prepare->callback([options, &exit_code] {
    print(options->output, prepare_byte_tokens(options->files, unescape(options->separator), options->output));
    exit_code = static_cast<int>(ExitCode::ok);
  });

  CLI::App* check = data->add_subcommand("check", "Read token files whole and compare their checksums");
  check->add_option("FILES", options->files, "Token files")->required();
  check->callback([options, &exit_code] {
    for (const std::string& path : options->files) {
      print(path, read_token_file(MappedFile(path), true));
    }
    exit_code = static_cast<int>(ExitCode::ok);
  });
}

}  // namespace orthant
