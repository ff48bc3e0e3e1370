foreach(suite IN ITEMS TensorAxis/Boundaries)
  orthant_test_group(${suite} "${suite}*")
endforeach()
