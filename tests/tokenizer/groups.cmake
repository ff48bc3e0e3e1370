foreach(suite IN ITEMS Kinds/OfWheels Models/SameIds)
  orthant_test_group(${suite} "${suite}*")
endforeach()
