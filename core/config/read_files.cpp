#include "core/config/read_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_bytes = 1 << 20;  // of one file
constexpr std::size_t most_files = 64;       // counted as often as they are extended

// The text of a file, or why there is none.
std::optional<std::string> read_text(const fs::path& path, std::string& problem) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    problem = "there is no such file";
  } else if (error) {
    problem = fmt::format("cannot be read: {}", error.message());
  } else if (status.type() == fs::file_type::directory) {
    problem = "is a directory";
  } else if (status.type() != fs::file_type::regular) {
    problem = "is not a regular file";
  } else {
    errno = 0;
    std::ifstream in(path, std::ios::binary);
    std::string text;
    std::array<char, 4096> chunk;
    while (in && text.size() <= most_bytes) {  // no more than that, whatever size the file claims
      in.read(chunk.data(), chunk.size());
      text.append(chunk.data(), static_cast<std::size_t>(in.gcount()));
    }
    if (in.bad() || !in.is_open()) {
      problem = fmt::format("cannot be read: {}", std::strerror(errno));
    } else if (text.size() > most_bytes) {
      problem = "is larger than 1 MiB";
    } else {
      return text;
    }
  }
  return std::nullopt;
}

class Reader {
 public:
  Reader(Sources& sources, Diagnostics& diagnostics) : sources_(sources), diagnostics_(diagnostics) {}

  // `origin`: where the file was named; empty for the main file. Errors of the main file itself have no line.
  void read(const fs::path& shown, const std::string& origin) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(shown, error);
    const auto again = std::find_if(chain_.begin(), chain_.end(), [&](const auto& link) { return link.real == real; });
    if (again != chain_.end()) {
      std::string names;
      for (auto link = again; link != chain_.end(); ++link) {
        names += link->shown.string() + " -> ";
      }
      diagnostics_.add(origin, "extends goes in a circle: " + names + shown.string(), "remove one of the links");
      return;
    }
    if (++files_ > most_files) {
      diagnostics_.add(origin, fmt::format("more than {} files are extended", most_files), "extend fewer files");
      return;
    }
    std::string problem;
    auto text = read_text(shown, problem);
    if (!text) {
      if (origin.empty()) {
        sources_.add(shown.string(), "");
      }
      // The main file's name already stands before the message.
      const bool named = origin.empty() && !shown.empty();
      diagnostics_.add(origin, named ? problem : fmt::format("{}: {}", shown.string(), problem),
                       "write the path of a TOML file");
      return;
    }
    const int file = sources_.add(shown.string(), *text);
    auto root = read_toml(sources_, file, *text, diagnostics_);
    if (!root) {
      return;
    }
    chain_.push_back({shown, real});
    const auto extends = std::find_if(root->members.begin(), root->members.end(),
                                      [](const Member& member) { return member.key == "extends"; });
    if (extends != root->members.end()) {
      read_bases(extends->value, shown.parent_path());
      root->members.erase(extends);
    }
    chain_.pop_back();
    layers_.push_back({std::move(*root), fs::absolute(shown).parent_path(), false});
  }

  void override_with(const std::vector<std::string>& overrides) {
    std::string text;
    for (const std::string& one : overrides) {
      text += one.substr(0, one.find('\n')) + "\n";
    }
    const int file = overrides.empty() ? 0 : sources_.add("--set", text);
    for (std::size_t i = 0; i < overrides.size(); ++i) {
      auto root = read_override(sources_, file, static_cast<int>(i) + 1, overrides[i], diagnostics_);
      if (root && !root->members.empty() && root->members.front().key == "extends") {
        diagnostics_.add(root->members.front().origin, "'extends' cannot be set by an override", "write it in a file");
      } else if (root) {
        layers_.push_back({std::move(*root), fs::current_path(), true});
      }
    }
  }

  std::vector<SettingsLayer> take() { return std::move(layers_); }

 private:
  struct Link {
    fs::path shown;
    fs::path real;
  };

  void read_bases(const Node& value, const fs::path& directory) {
    const bool array = value.kind == Node::Kind::array;
    const std::vector<Node> single = array ? std::vector<Node>{} : std::vector<Node>{value};
    for (const Node& item : array ? value.items : single) {
      if (item.kind != Node::Kind::text) {
        diagnostics_.add(item.origin, fmt::format("extends: expected file names, found {}", kind_name(item)),
                         "write extends = [\"base.toml\"]");
      } else if (item.text.empty() || item.text.size() > 4096 || item.text.find('\0') != std::string::npos) {
        diagnostics_.add(item.origin, "extends: not a file name", "write extends = [\"base.toml\"]");
      } else {
        read((directory / item.text).lexically_normal(), item.origin);
      }
    }
  }

  Sources& sources_;
  Diagnostics& diagnostics_;
  std::vector<Link> chain_;
  std::vector<SettingsLayer> layers_;
  std::size_t files_ = 0;
};

}  // namespace

std::vector<SettingsLayer> read_layers(const std::string& file, const std::vector<std::string>& overrides,
                                       Sources& sources, Diagnostics& diagnostics) {
  Reader reader(sources, diagnostics);
  reader.read(file, "");
  reader.override_with(overrides);
  return reader.take();
}

}  // namespace orthant
