# They share one hindcast.
orthant_test_group(goals "Goals.*")
