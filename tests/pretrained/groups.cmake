foreach(suite IN ITEMS Families/Published)
  orthant_test_group(${suite} "${suite}*")
endforeach()
