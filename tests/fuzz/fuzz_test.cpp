// A short, repeatable run of each fuzz target: its seeds, and mutations of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "tests/fuzz/target.h"

namespace orthant::fuzz::fuzz_test {
namespace {

struct Case {
  const Target* target;
  int mutations;
};

class Short : public testing::TestWithParam<Case> {};

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& seeds) : seeds_(seeds) {}

  std::string next() {
    std::string input = any();
    for (std::uint64_t changes = 1 + below(4); changes > 0; --changes) {
      change(input);
    }
    return input;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % std::max<std::uint64_t>(n, 1); }
  const std::string& any() { return seeds_[below(seeds_.size())]; }

  void change(std::string& input) {
    const std::size_t at = below(input.size());
    const std::size_t length = 1 + below(std::min<std::size_t>(input.size() - at, 16));
    switch (below(7)) {
      case 0:
        if (!input.empty()) {
          input[at] = static_cast<char>(input[at] ^ 1 << below(8));
        }
        break;
      case 1:
        if (!input.empty()) {
          input[at] = static_cast<char>(random_());
        }
        break;
      case 2: input.resize(at); break;
      case 3: input.erase(at, length); break;
      case 4: input.insert(at, input.substr(below(input.size()), length)); break;
      case 5: {  // another input's end
        const std::string& other = any();
        input = input.substr(0, at) + other.substr(below(other.size()));
        break;
      }
      default: {  // a number at the edge of something
        static constexpr std::uint64_t edges[] = {0,          1,          0x7f,       0xff,       0x7fff, 0xffff,
                                                  0x7fffffff, 0xffffffff, 1ull << 40, ~0ull >> 1, ~0ull,  ~0ull - 15};
        const std::uint64_t value = edges[below(std::size(edges))];
        const std::size_t bytes = std::min<std::size_t>(std::size_t{1} << below(4), input.size() - at);
        std::memcpy(input.data() + at, &value, bytes);
      }
    }
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_{1};
};

TEST_P(Short, EveryInputIsReadOrRefused) {
  const std::vector<std::string> seeds = GetParam().target->seeds();
  const auto run = [&](const std::string& input) {
    GetParam().target->run(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  };
  for (const std::string& seed : seeds) {
    run(seed);
  }
  Mutator mutator(seeds);
  for (int i = 0; i < GetParam().mutations; ++i) {
    ASSERT_NO_THROW(run(mutator.next())) << "mutation " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Short,
                         testing::Values(Case{&config, 1000}, Case{&manifest, 5000}, Case{&safetensors, 10000},
                                         Case{&tokens, 10000}, Case{&hostfile, 5000}, Case{&rendezvous, 20000},
                                         Case{&elf, 2000}, Case{&tokenizer, 5000}, Case{&megatron, 10000},
                                         Case{&conversation, 10000}, Case{&published, 5000},
                                         Case{&request_head, 20000}),
                         [](const auto& test) { return std::string(test.param.target->name); });

}  // namespace
}  // namespace orthant::fuzz::fuzz_test
