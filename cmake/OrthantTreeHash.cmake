# cmake -D ROOT=DIR -D TO=FILE -P OrthantTreeHash.cmake: the hash of the tree's headers as a header of one macro. Programs
# of libexec use headers that no version protects, and compare it with the library's (core/command/run_command.cpp).
file(GLOB_RECURSE headers RELATIVE "${ROOT}" "${ROOT}/core/*.h" "${ROOT}/router/*.h" "${ROOT}/experts/*.h" "${ROOT}/objectives/*.h" "${ROOT}/parallel/*.h")
list(SORT headers)
set(all "")
foreach(header IN LISTS headers)
  file(SHA256 "${ROOT}/${header}" hash)
  string(APPEND all "${header}=${hash};")
endforeach()
string(SHA256 all "${all}")
string(SUBSTRING "${all}" 0 16 all)
file(CONFIGURE OUTPUT "${TO}" CONTENT "// Generated.\n#pragma once\n#define ORTHANT_TREE \"@all@\"\n" @ONLY)
