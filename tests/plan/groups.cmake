foreach(suite IN ITEMS Devices/Counted Layouts/Planned Layouts/WorstRouting)
  orthant_test_group(${suite} "${suite}*")
endforeach()
