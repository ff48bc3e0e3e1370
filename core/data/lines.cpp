#include "core/data/lines.h"

#include <orthant/error.h>

#include "core/base/mapped_file.h"
#include "core/data/not_text.h"

namespace orthant {

void for_each_line(std::string_view text, const std::function<void(std::string_view line, std::int64_t number)>& fn) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      fn(line, number);
    }
  }
}

std::size_t for_each_line(const std::string& path,
                          const std::function<void(std::string_view line, const std::string& where)>& fn) {
  const MappedFile file(path);
  require_text(file);
  std::size_t found = 0;
  for_each_line(std::string_view(reinterpret_cast<const char*>(file.bytes().data()), file.size()),
                [&](std::string_view line, std::int64_t number) {
                  ++found;
                  try {
                    fn(line, fmt::format("{}:{}", path, number));
                  } catch (const Error& error) {
                    throw ConfigError(error.what());
                  }
                });
  return found;
}

}  // namespace orthant
