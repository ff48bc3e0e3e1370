// A library with little in it but a note.
#include <orthant/library_note.h>

extern "C" __attribute__((visibility("default"))) int orthant_seed() {
  return 1;
}

ORTHANT_LIBRARY_NOTE("plugin", ORTHANT_ABI)
