// The notes by which a library is known before a line of it runs. They say what the library is, and what it was built
// with. The loader reads them from the file and refuses what does not fit, before it opens the library.
//
// What it is: ORTHANT_PLUGIN, ORTHANT_COMMUNICATOR and ORTHANT_DEVICE (module.h) write one note.
//
// Which headers it needs: the public headers are in groups, and each group has a hash of its headers. A header includes
// <orthant/abi/GROUP.h>, which is generated and writes a note with the group's hash into every object that is compiled
// with it. A library so has the groups that its sources include, directly or not, and no others: a header that none of
// them includes may change without it.
//
// Form: section .note.orthant, ELF notes with name "Orthant". Type 1, once: the ABI number (32 bits), then the kind and
// ORTHANT_BUILD, each terminated by a zero byte. Type 2, any number, also of one group: its name and its hash (16
// digits), each terminated by a zero byte.
#pragma once

#include <cstddef>  // defines _GLIBCXX_USE_CXX11_ABI

#include <orthant/abi/modules.h>

// Version of the interfaces that modules meet, for changes that no header shows; CHANGELOG.md tells its history.
#define ORTHANT_ABI 4

#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
#define ORTHANT_CXX_LIBRARY "libstdc++ cxx11"
#else
#define ORTHANT_CXX_LIBRARY "other"
#endif
#define ORTHANT_STRINGIFY_(x) #x
#define ORTHANT_STRINGIFY(x) ORTHANT_STRINGIFY_(x)

// Compiler and C++ library ABI.
#if defined(__clang__)
#define ORTHANT_COMPILER "clang " ORTHANT_STRINGIFY(__clang_major__)
#else
#define ORTHANT_COMPILER "gcc " ORTHANT_STRINGIFY(__GNUC__)
#endif
#define ORTHANT_BUILD ORTHANT_COMPILER "; " ORTHANT_CXX_LIBRARY

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
