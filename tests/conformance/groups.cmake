foreach(suite IN ITEMS Conformance/FaultOfAKind Conformance/RudeGate Conformance/RudeOptimizer)
  orthant_test_group(${suite} "${suite}*")
endforeach()
