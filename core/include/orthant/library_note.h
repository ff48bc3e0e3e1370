// The note by which a library is known before a line of it runs. It says what the library is, and what it was built
// with.
//
// ORTHANT_PLUGIN, ORTHANT_COMMUNICATOR and ORTHANT_DEVICE (module.h) write it. The loader reads it from the file and
// refuses what it does not fit, before it opens the library.
//
// Form: section .note.orthant, one ELF note with name "Orthant" and type 1. Its descriptor is the ABI number (32 bits),
// then the kind and ORTHANT_BUILD, each terminated by a zero byte.
#pragma once

#include <orthant/build_id.h>

#include <cstddef>  // defines _GLIBCXX_USE_CXX11_ABI

// Version of the interfaces that modules meet; CHANGELOG.md tells its history.
#define ORTHANT_ABI 4

#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
#define ORTHANT_CXX_LIBRARY "libstdc++ cxx11"
#else
#define ORTHANT_CXX_LIBRARY "other"
#endif
#define ORTHANT_STRINGIFY_(x) #x
#define ORTHANT_STRINGIFY(x) ORTHANT_STRINGIFY_(x)

// Compiler, C++ library ABI and public headers: equal strings may share virtual tables.
#if defined(__clang__)
#define ORTHANT_COMPILER "clang " ORTHANT_STRINGIFY(__clang_major__)
#else
#define ORTHANT_COMPILER "gcc " ORTHANT_STRINGIFY(__GNUC__)
#endif
#define ORTHANT_BUILD ORTHANT_COMPILER "; " ORTHANT_CXX_LIBRARY "; headers " ORTHANT_HEADERS_HASH

// KIND: a string literal; ABI: a number, or a macro that is one. Once in a library, at namespace scope.
// It is assembly because no optimisation drops that, and because its section then has the type of notes, which
// --gc-sections and strip keep.
#define ORTHANT_LIBRARY_NOTE(KIND, ABI) ORTHANT_LIBRARY_NOTE_(KIND, ORTHANT_STRINGIFY(ABI))
#define ORTHANT_LIBRARY_NOTE_(KIND, ABI)         \
  __asm__(                                       \
      ".pushsection .note.orthant,\"a\",%note\n" \
      ".balign 4\n"                              \
      ".long 8, 661f - 660f, 1\n"                \
      ".asciz \"Orthant\"\n"                     \
      "660: .long " ABI                          \
      "\n"                                       \
      ".asciz \"" KIND                           \
      "\"\n"                                     \
      ".asciz \"" ORTHANT_BUILD                  \
      "\"\n"                                     \
      "661: .balign 4\n"                         \
      ".popsection\n");
