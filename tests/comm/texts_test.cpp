// Texts of ranks, gathered in pieces: of any lengths, and in little memory.
#include <gtest/gtest.h>

#include <mutex>

#include "parallel/host_collectives.h"
#include "parallel/local/thread_world.h"

namespace orthant::texts_test {
namespace {

std::string text_of(int rank, std::int64_t length) {
  std::string text;
  for (std::int64_t i = 0; i < length; ++i) {
    text.push_back(static_cast<char>('a' + (i * 7 + rank) % 26));
  }
  return text;
}

TEST(Texts, OfAnyLengthsReachEveryRank) {
  const std::vector<std::vector<std::int64_t>> lengths = {
      {0, 0, 0}, {5, 0, 1}, {4096, 5461, 5462}, {100000, 3, 70000}, {0, 16384, 0}};
  run_threads(3, [&](Communicator& communicator) {
    const std::unique_ptr<Device> device = make_cpu_device(1);
    const std::unique_ptr<Stream> stream = device->make_main_stream();
    const std::unique_ptr<Group> group = communicator.split("texts", {0, 1, 2});
    for (const std::vector<std::int64_t>& of : lengths) {
      device->reset_peak();
      const std::vector<std::string> texts = gather_texts(
          text_of(communicator.rank(), of[static_cast<std::size_t>(communicator.rank())]), *group, *stream);
      ASSERT_EQ(texts.size(), of.size());
      for (std::size_t r = 0; r < of.size(); ++r) {
        EXPECT_EQ(texts[r], text_of(static_cast<int>(r), of[r])) << r;
      }
      EXPECT_LT(device->memory().peak_bytes, 32 << 10);
    }
  });
}

}  // namespace
}  // namespace orthant::texts_test
