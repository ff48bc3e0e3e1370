#include "core/base/file_lock.h"

#include <sys/file.h>

#include <cerrno>

namespace orthant {

int lock_file(int file, bool wait) {
  while (::flock(file, LOCK_EX | (wait ? 0 : LOCK_NB)) != 0) {
    if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace orthant
