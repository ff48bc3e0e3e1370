// orthant data prepare FILES... -o OUT [--tokenizer FILE]: texts, or token ids of others, as a token file;
// orthant data tokenizer FILES... -o FILE --vocab-size N: a new tokenizer;
// orthant data check FILES...: token files.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "apps/data/raw_tokens.h"
#include "core/base/output.h"
#include "core/command/arguments.h"
#include "core/data/prepare.h"
#include "core/data/token_file.h"
#include "core/data/write_file.h"
#include "core/tokenizer/tokenizer_module.h"

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;

struct DataOptions {
  std::vector<std::string> files;
  std::string output;
  std::string separator = "\\n\\n\\n";
  std::string text_key;
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::string tokenizer = "bytes";
  std::string ids;              // of files that are ids alone: "uint16", "uint32"; empty: none are
  std::int64_t vocabulary = 0;  // of ids whose tokenizer is not named
  std::size_t id_width() const { return ids.empty() ? 0 : ids == "uint16" ? 2 : 4; }
  bool prepend_bos = false, append_eos = false;
  std::string bos_token, eos_token;
  TrainTokenizerOptions training;
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
  put("{}: {} tokens of {} bytes, vocabulary {}, {} documents{}\n", path, file.tokens, file.width, file.vocabulary,
      file.documents.size(), file.tokenizer == 0 ? "" : fmt::format(", tokenizer {:016x}", file.tokenizer));
}

// The token that stands before or behind each document; nothing where none was asked for.
std::optional<std::int32_t> edge_token(bool asked, const std::string& name, const std::optional<std::int32_t>& own,
                                       const Tokenizer& tokenizer, const char* which) {
  if (!name.empty()) {
    const std::optional<std::int32_t> id = tokenizer.id_of(name);
    if (!id) {
      throw ConfigError(fmt::format("--{}-token: '{}' is no token of '{}'", which, name, tokenizer.name()));
    }
    return id;
  }
  if (asked && !own) {
    throw ConfigError(
        fmt::format("'{}' does not say which token is {}: name it by --{}-token", tokenizer.name(), which, which));
  }
  return asked ? own : std::nullopt;
}

// A line on a terminal that is written again and again; nothing elsewhere.
std::function<void(const PrepareProgress&)> terminal_progress() {
  if (isatty(STDERR_FILENO) != 1) {
    return {};
  }
  const Clock::time_point begin = Clock::now();
  return [begin, last = Clock::time_point()](const PrepareProgress& progress) mutable {
    const Clock::time_point now = Clock::now();
    const bool end = progress.bytes == progress.bytes_in_all;
    if (!end && now - last < std::chrono::milliseconds(200)) {
      return;
    }
    last = now;
    const double seconds = std::chrono::duration<double>(now - begin).count();
    const double share = static_cast<double>(progress.bytes) / static_cast<double>(progress.bytes_in_all);
    std::fputs(fmt::format("\r{:3.0f}%  {:.1f}M tokens  {:.1f} MB/s  ETA {:.0f}s   {}", 100 * share,
                           static_cast<double>(progress.tokens) * 1e-6,
                           static_cast<double>(progress.bytes) * 1e-6 / std::max(seconds, 1e-3),
                           seconds * (1 - share) / std::max(share, 1e-6), end ? "\n" : "")
                   .c_str(),
               stderr);
    std::fflush(stderr);
  };
}

// Whether the files hold token ids, not texts. One that might is told of, before its bytes are taken for a text.
bool hold_ids(const DataOptions& options) {
  const auto holds = [&](const std::string& path) {
    return raw_tokens_in(MappedFile(path), options.id_width()).has_value();
  };
  const auto ids = std::count_if(options.files.begin(), options.files.end(), holds);
  if (ids != 0 && ids != std::ssize(options.files)) {
    throw ConfigError("some of the files hold token ids, and some texts: prepare them by themselves");
  }
  const auto named_so = std::find_if(options.files.begin(), options.files.end(),
                                     [](const std::string& path) { return path.ends_with(".bin"); });
  if (ids == 0 && named_so != options.files.end()) {
    throw ConfigError(
        fmt::format("'{}' has no header of llm.c: where it is token ids and nothing else, as nanoGPT "
                    "writes them, say --ids uint16 (or uint32); a text has another name",
                    *named_so));
  }
  return ids != 0;
}

void prepare_ids(const DataOptions& options, bool edges) {
  if (edges) {
    throw ConfigError(
        "the files hold token ids: bos and eos are in them or not; leave --prepend-bos, --append-eos, "
        "--bos-token and --eos-token out");
  }
  const bool named = options.tokenizer != "bytes";
  if (named == (options.vocabulary > 0)) {
    throw ConfigError(
        "the files hold token ids, and do not say of what vocabulary: give the --tokenizer that made them, "
        "or else its number of tokens by --vocab-size");
  }
  const std::shared_ptr<const Tokenizer> tokenizer = named ? load_tokenizer(options.tokenizer) : nullptr;
  print(options.output, prepare_raw_tokens({.files = options.files,
                                            .width = options.id_width(),
                                            .vocabulary = named ? tokenizer->vocabulary() : options.vocabulary,
                                            .tokenizer = named ? tokenizer->hash() : 0,
                                            .output = options.output}));
}

void prepare(const DataOptions& options) {
  const bool edges =
      options.prepend_bos || options.append_eos || !options.bos_token.empty() || !options.eos_token.empty();
  if (hold_ids(options)) {
    return prepare_ids(options, edges);
  }
  if (options.vocabulary > 0) {
    throw ConfigError("--vocab-size: the files are texts, and their tokenizer says it; leave it out");
  }
  const bool json = std::any_of(options.files.begin(), options.files.end(), &is_json_lines);
  const std::string separator = unescape(options.separator);
  if (options.tokenizer == "bytes" && !edges && !json) {
    print(options.output, prepare_byte_tokens(options.files, separator, options.output));
    return;
  }
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(options.tokenizer);
  const SpecialTokens& special = tokenizer->special();
  print(options.output,
        prepare_tokens({.files = options.files,
                        .text = {.separator = separator, .text_key = options.text_key},
                        .tokenizer = tokenizer,
                        .bos = edge_token(options.prepend_bos, options.bos_token, special.bos, *tokenizer, "bos"),
                        .eos = edge_token(options.append_eos, options.eos_token, special.eos, *tokenizer, "eos"),
                        .threads = options.threads,
                        .output = options.output,
                        .progress = terminal_progress()}));
}

// Lines of all documents, one after another.
class Lines {
 public:
  Lines(const std::vector<std::string>& paths, const TextOptions& options) {
    for (const std::string& path : paths) {
      files_.emplace_back(path, options);
    }
  }

  bool next(std::string& line) {
    while (text_.empty()) {
      if (file_ == files_.size()) {
        return false;
      }
      if (document_ == files_[file_].documents().size()) {
        ++file_;
        document_ = 0;
        continue;
      }
      text_ = files_[file_].text(files_[file_].documents()[document_++], decoded_);
    }
    const std::size_t end = std::min(text_.find('\n'), text_.size());
    line.assign(text_.substr(0, end));
    text_.remove_prefix(std::min(end + 1, text_.size()));
    return true;
  }

 private:
  std::vector<TextFile> files_;
  std::size_t file_ = 0, document_ = 0;
  std::string decoded_;
  std::string_view text_;
};

void train(const DataOptions& options) {
  if (!options.output.ends_with(".model")) {
    throw ConfigError(fmt::format("-o: '{}' should end in .model, as SentencePiece's files do", options.output));
  }
  check_output_file(options.output);
  Lines lines(options.files, {.separator = unescape(options.separator), .text_key = options.text_key});
  TrainTokenizerOptions training = options.training;
  training.threads = options.threads;
  const std::string model = tokenizer_module().train(training, [&](std::string& line) { return lines.next(line); });
  write_file(options.output, model);
  put("{}: {} tokens\n", options.output, load_tokenizer(options.output)->vocabulary());
}

void add_text_options(CLI::App& command, DataOptions& options) {
  command.add_option("FILES", options.files, "Text files, and JSON lines in files that end in .jsonl or .json")
      ->required();
  command
      .add_option("--separator", options.separator,
                  "What stands between two documents of a text file; \\n, \\t, \\0, \\\\ as in C")
      ->capture_default_str();
  command.add_option("--text-key", options.text_key,
                     "The key of a document in a JSON row; text if not given, or content where there is none");
  command.add_option("--threads", options.threads, "Threads; all processors if not given")->check(CLI::Range(1, 1024));
}

}  // namespace

void add_data_command(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Make tokenizers and token files, and check them");
  data->require_subcommand(1);
  data->footer(
      "Examples:\n"
      "  orthant data prepare texts/*.txt -o tokens.bin --tokenizer tokenizer.json\n"
      "  orthant data check tokens.bin");
  auto options = std::make_shared<DataOptions>();
  const auto finish = [&exit_code](auto work) {
    return [work, &exit_code] {
      work();
      exit_code = static_cast<int>(ExitCode::ok);
    };
  };

  CLI::App* prepare_command = data->add_subcommand("prepare", "Write texts, or token ids of others, as one token file");
  add_text_options(*prepare_command, *options);
  prepare_command->add_option("-o,--output", options->output, "The token file to write")->required()->check(not_empty);
  prepare_command
      ->add_option("--tokenizer", options->tokenizer, "bytes, a tokenizer.json, a SentencePiece .model, or a folder")
      ->capture_default_str();
  prepare_command
      ->add_option("--ids", options->ids,
                   "FILES are token ids and nothing else (nanoGPT): uint16 or uint32. Those of llm.c and .npy say it "
                   "themselves")
      ->check(CLI::IsMember({"uint16", "uint32"}));
  prepare_command
      ->add_option("--vocab-size", options->vocabulary, "Of token ids: the vocabulary, where --tokenizer is not named")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31));
  prepare_command->add_flag("--prepend-bos", options->prepend_bos, "Begin each document with the tokenizer's bos");
  prepare_command->add_flag("--append-eos", options->append_eos, "End each document with the tokenizer's eos");
  prepare_command->add_option("--bos-token", options->bos_token, "Begin each document with this token");
  prepare_command->add_option("--eos-token", options->eos_token, "End each document with this token");
  prepare_command->callback(finish([options] { prepare(*options); }));

  CLI::App* tokenizer = data->add_subcommand("tokenizer", "Train a SentencePiece tokenizer with byte fallback");
  add_text_options(*tokenizer, *options);
  tokenizer->add_option("-o,--output", options->output, "The .model to write")->required()->check(not_empty);
  tokenizer->add_option("--vocab-size", options->training.vocabulary, "Tokens, 256 bytes among them")
      ->required()
      ->check(CLI::Range(260, 1 << 24));
  tokenizer->add_option("--type", options->training.type, "How it is trained")
      ->check(CLI::IsMember({"bpe", "unigram"}))
      ->capture_default_str();
  tokenizer
      ->add_option("--sentences", options->training.most_sentences, "Lines to train on, drawn from all; 0: all of them")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  tokenizer->callback(finish([options] { train(*options); }));

  CLI::App* check = data->add_subcommand("check", "Read token files whole and compare their checksums");
  check->add_option("FILES", options->files, "Token files")->required();
  check->callback(finish([options] {
    for (const std::string& path : options->files) {
      print(path, read_token_file(MappedFile(path), true));
    }
  }));
}

}  // namespace orthant
