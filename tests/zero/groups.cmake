foreach(suite IN ITEMS Zero/Memory Zero/Models)
  orthant_test_group(${suite} "${suite}*")
endforeach()
