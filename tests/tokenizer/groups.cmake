foreach(suite IN ITEMS Kinds/OfWheels)
  orthant_test_group(${suite} "${suite}*")
endforeach()
