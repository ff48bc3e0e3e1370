// Sources: the texts a configuration was read from, so that a message can show the line it is about.
//
// Every file is one text; the `--set` overrides together are one more, named "--set", one line each.
// An origin is the string "name:line:column" (both counted from 1, columns in characters) and is what the values of a
// configuration carry; "default" is the origin of a value nobody wrote. Not thread-safe while being filled.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

class Sources {
 public:
  // Where an origin points: `length` characters from line:column of text number `file`.
  struct Place {
    int file = 0;
    int line = 1;
    int column = 1;
    int length = 1;
  };

  // Adds a text, or finds the one already added under this name. The first one added is the main file.
  int add(const std::string& name, std::string text);

  // The origin string of a place, whose length is remembered.
  std::string origin(const Place& place);

  // The place of an origin; nothing for "default" and for what was never read.
  std::optional<Place> find(const std::string& origin) const;

  const std::string& name(int file) const { return files_.at(file).name; }
  bool empty() const { return files_.empty(); }

  // Line `line` of a text, without its end; empty past the last one.
  std::string_view line(int file, int line) const;

 private:
  struct File {
    std::string name;
    std::string text;
    std::vector<std::size_t> starts;  // of each line
  };
  std::vector<File> files_;
  std::map<std::string, Place> places_;
};

}  // namespace orthant
