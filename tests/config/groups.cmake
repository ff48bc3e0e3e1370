foreach(suite IN ITEMS Corpus/BadConfiguration)
  orthant_test_group(${suite} "${suite}*")
endforeach()
