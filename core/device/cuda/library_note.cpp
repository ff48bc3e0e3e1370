// The note of this library, in a file that the host's compiler reads alone: it names that compiler.
#include <orthant/library_note.h>

ORTHANT_LIBRARY_NOTE("device", ORTHANT_PLUGIN_ABI)
