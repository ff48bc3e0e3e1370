#include "bench/study/open_study.h"

#include "bench/study/card.h"
#include "core/checkpoint/disk.h"

namespace orthant {

OpenedStudy open_study(const std::string& path) {
  if (!path.ends_with(".json")) {
    return {read_study(path), "", {}, nullptr};
  }
  // The texts in a card are read as files are.
  const UnpackedCard card = unpack_card(path);
  const auto files = std::make_shared<const ScratchFolder>();
  const Disk disk;
  disk.replace_file(files->path() / "study.toml", card.study);
  disk.replace_file(files->path() / "config.toml", card.config);
  OpenedStudy opened{read_study((files->path() / "study.toml").string()), card.text_hash, card.overrides, files};
  opened.study.config = (files->path() / "config.toml").string();
  return opened;
}

}  // namespace orthant
