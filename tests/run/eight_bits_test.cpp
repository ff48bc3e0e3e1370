// A run that keeps its optimizer's states in 8 bits, as commands meet it that have no optimizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace orthant::run_test::eight_bits_test {
namespace {

const std::vector<std::string> wide = {"model.d_model=32", "run.dtype=bf16"};
const std::vector<std::string> eight_bits = {"optimizer.state_dtype=8bit", "optimizer.master_weights=none"};

// With all frozen nothing is stored in 8 bits, which training refuses.
TEST(StatesInEightBits, AreNothingToWhoOnlyReadsTheWeights) {
  const ProgramFolder folder;
  folder.write("c.toml", tiny_config({.data = 2, .expert = 2}));
  std::vector<std::string> set = wide;
  set.insert(set.end(), eight_bits.begin(), eight_bits.end());
  const Result trained = folder.orthant(with_set({"launch", "c.toml"}, set));
  ASSERT_EQ(trained.code, 0) << trained.error;
  const std::vector<std::vector<std::string>> all = {
      {"eval", "runs/r", "text.txt", "--json"},
      {"generate", "runs/r", "--prompt", "line ", "--temperature", "0", "--max-tokens", "4", "--json"}};
  for (const std::vector<std::string>& words : all) {
    const Result read = folder.orthant(words);
    EXPECT_EQ(read.code, 0) << words[0] << ": " << read.error;
  }
  const Result as_fp32 = folder.orthant(
      with_set(all[0], {"optimizer.state_dtype=fp32", "optimizer.master_weights=fp32", "optimizer.name=sgd"}));
  ASSERT_EQ(as_fp32.code, 0) << as_fp32.error;
  EXPECT_EQ(folder.orthant(all[0]).output, as_fp32.output);

  set.insert(set.end(), {"run.name=taught", "distil.teacher=runs/r", "run.steps=2"});
  const Result taught = folder.orthant(with_set({"launch", "c.toml"}, set));
  EXPECT_EQ(taught.code, 0) << taught.error;
}

}  // namespace
}  // namespace orthant::run_test::eight_bits_test
