#include "core/data/lines.h"

#include <orthant/error.h>

#include "core/data/mapped_file.h"

namespace orthant {

std::size_t for_each_line(const std::string& path,
                          const std::function<void(std::string_view line, const std::string& where)>& fn) {
  const MappedFile file(path);
  std::string_view left(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  std::size_t found = 0;
  for (std::int64_t number = 1; !left.empty(); ++number) {
    const std::size_t end = left.find('\n');
    const std::string_view line = left.substr(0, end);
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    ++found;
    try {
      fn(line, fmt::format("{}:{}", path, number));
    } catch (const Error& error) {
      throw ConfigError(error.what());
    }
  }
  return found;
}

}  // namespace orthant
