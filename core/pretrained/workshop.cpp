#include "core/pretrained/workshop.h"

#include <fmt/format.h>
#include <unistd.h>

#include <span>

namespace orthant {

Workshop::Workshop(const Disk& disk, const std::filesystem::path& output)
    : disk_(disk), path_(output.string() + fmt::format(".tmp-{}", getpid())), output_(output) {
  disk.create_folder(path_);
}

Workshop::~Workshop() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void Workshop::write_text(const std::string& name, const std::string& content) const {
  DiskFile file(disk_, path_ / name);
  file.write(std::as_bytes(std::span(content)));
  file.sync_and_close();
}

void Workshop::become_output() const {
  disk_.sync_folder(path_);
  disk_.rename(path_, output_);
  disk_.sync_folder(output_.parent_path());
}

}  // namespace orthant
