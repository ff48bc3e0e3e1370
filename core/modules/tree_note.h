// What stands in a library that uses headers of the tree which no version protects: the loader compares the tree that
// it was built of with its own (core/modules/open_library.cpp). A note of type 2 (orthant/library_note.h), of the group
// "tree". Each once in a library, at namespace scope.
#pragma once

#include <orthant/module.h>

#include "orthant_build.h"

#define ORTHANT_OWN_MODULE(NAME, INTERFACE, CLASS) \
  ORTHANT_TREE_NOTE                                \
  ORTHANT_MODULE("module", NAME, nullptr, INTERFACE, nullptr, [](const void*) { return std::make_unique<CLASS>(); })
#define ORTHANT_TREE_NOTE                        \
  __asm__(                                       \
      ".pushsection .note.orthant,\"a\",%note\n" \
      ".balign 4\n"                              \
      ".long 8, 661f - 660f, 2\n"                \
      ".asciz \"Orthant\"\n"                     \
      "660: .asciz \"tree\"\n"                   \
      ".asciz \"" ORTHANT_TREE                   \
      "\"\n"                                     \
      "661: .balign 4\n"                         \
      ".popsection\n");
