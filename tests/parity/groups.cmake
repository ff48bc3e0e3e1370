# The cells of the table of one kind of model (layouts.cpp) are one entry of ctest: a cell is short beside the start of a
# process, and they share what they are compared with. A cell that fails is named in the output.
set(models topk topk_capacity switch switch_capacity gshard gshard_capacity expert_choice sigmoid shared_experts_tied gpt2
  noise micro_batches_of_one clipped_sgd few_tokens few_kv_heads normed_heads norm_over_heads deepseek qwen2 biases_window gpt_oss gpt_oss_in_part
  recompute_selective recompute_full adapted partly_frozen dense_bf16)
set(cells "LayoutTable/Cell.EqualsOneRank")
set(listed "")
foreach(model IN LISTS models)
  list(APPEND listed "${cells}/*__${model}")
  add_test(NAME "parity.${cells}/${model}" COMMAND ${target} "--gtest_filter=${cells}/*__${model}"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties("parity.${cells}/${model}" PROPERTIES
    TIMEOUT 300 LABELS parity ENVIRONMENT "OMP_WAIT_POLICY=passive")
endforeach()
list(JOIN listed ":" listed)
set(filter "-${listed}")  # the cells of a model that is not listed here each have an entry
