foreach(suite IN ITEMS Models/OfLayouts Models/OneAnswer)
  orthant_test_group(${suite} "${suite}*")
endforeach()
