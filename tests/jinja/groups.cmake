orthant_test_group(all "*")
