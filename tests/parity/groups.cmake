# The cells of the table of one kind of model (layouts.cpp) share what they are compared with. The cells of a model that is
# not listed here each have an entry.
set(models topk topk_capacity switch switch_capacity gshard gshard_capacity expert_choice sigmoid shared_experts_tied gpt2
  noise micro_batches_of_one clipped_sgd few_tokens few_kv_heads normed_heads norm_over_heads deepseek qwen2 biases_window gpt_oss gpt_oss_in_part
  recompute_selective recompute_full adapted partly_frozen dense_bf16)
foreach(model IN LISTS models)
  orthant_test_group(LayoutTable/Cell.EqualsOneRank/${model} "LayoutTable/Cell.EqualsOneRank/*__${model}")
endforeach()
foreach(suite IN ITEMS Parity/AveragesIn Expert/Ways Faults/Mistakes LargeLayouts/Table LayoutTable/GuardedCell LayoutTable/Sample.RepeatsInEveryBit
  LayoutTable/Sample.CallsCollectivesInOneOrder Layouts/Table LowMemory/EightBits Parity/Checkpoints Parity/Gates Parity/GrowingBatch Parity/InBackward
  Parity/KeepMicroBatches Parity/Late Parity/Models Parity/Mtp Parity/Optimizers Parity/PipelineModels Parity/SequenceModels Parity/SplitTokens
  Parity/StashParity Parity/TensorDense Parity/TensorRouted Parity/Trained)
  orthant_test_group(${suite} "${suite}*")
endforeach()
