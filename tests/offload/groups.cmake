foreach(suite IN ITEMS Engines/OnEachEngine Parity/Offload)
  orthant_test_group(${suite} "${suite}*")
endforeach()
