# Layouts are short beside the start of a process.
foreach(suite IN ITEMS Layouts/Encoder Layouts/Classes)
  orthant_test_group(${suite} "${suite}*")
endforeach()
