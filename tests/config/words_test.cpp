// Every choice has its word, and bytes have units.
#include <gtest/gtest.h>

#include <utility>

#include "tests/config/loaded.h"

namespace orthant::load_test {
namespace {

TEST(Bytes, AreNumbersWithAUnit) {
  const std::pair<const char*, std::int64_t> good[] = {
      {"20 GiB", std::int64_t{20} << 30}, {"512MiB", 512 << 20}, {"1.5 kib", 1536}, {"2 GB", 2'000'000'000},
      {"1 TiB", std::int64_t{1} << 40},   {"4096", 4096},        {"7 B", 7},        {"0.5 KB", 500}};
  for (const auto& [text, bytes] : good) {
    EXPECT_EQ(parse_bytes(text), bytes) << text;
  }
  for (const char* text : {"", " ", "GiB", "20 G", "20 apples", "-1 GiB", "0", "0.1 B", "1e3", "1 GiB 2", "nan", "inf",
                           "2000000 TiB", "1,5 GiB", "0x10", "20\tGiB"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
}

TEST_F(Load, BytesMayBeAPlainInteger) {
  EXPECT_EQ(load(synthetic + "[memory]\nlimit = 4096\n").settings.memory.limit, 4096);
  EXPECT_EQ(load(synthetic + "[memory]\nlimit = \"\"\n").settings.memory.limit, 0);
}

TEST_F(Load, EveryChoiceNamesItsOwnEnumerator) {
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nrouter = \"switch\"\n").settings.moe.router, "switch");
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nrouter = \"topk\"\n").settings.moe.router, "topk");
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nscore = \"sigmoid\"\n").settings.moe.own.at("score"),
            Value(std::string("sigmoid")));
  EXPECT_EQ(load(synthetic + "[model]\nactivation = \"relu\"\n").settings.model.activation, Activation::relu);
  EXPECT_EQ(load(synthetic + "[model]\nactivation = \"gelu\"\n").settings.model.activation, Activation::gelu);
  EXPECT_EQ(load(synthetic + "[model]\nactivation = \"clamped_swiglu\"\n").settings.model.activation,
            Activation::clamped_swiglu);
  EXPECT_EQ(load(synthetic + "[optimizer]\nschedule = \"constant\"\n").settings.optimizer.schedule, "constant");
  EXPECT_EQ(load(synthetic + "[optimizer]\nschedule = \"cosine\"\n").settings.optimizer.schedule, "cosine");
  EXPECT_EQ(load(synthetic + "documents = \"separate\"\n").settings.data.documents, Documents::separate);
}

}  // namespace
}  // namespace orthant::load_test
