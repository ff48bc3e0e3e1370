#include "tests/simt/engine.h"

#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simt/block.h"

namespace orthant::simt {

constinit thread_local const Position* position = nullptr;

namespace {

using Memory = std::unique_ptr<void, decltype(&std::free)>;

// Of exactly this size, so that AddressSanitizer sees the first byte behind it. 0xFF is NaN as a float, -1 as an index.
void poison(void* memory, std::size_t bytes) {
  std::memset(memory, 0xFF, bytes);
}

Memory poisoned_memory(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  require(posix_memalign(&memory, alignment, bytes) == 0, "no memory for {} bytes of shared memory", bytes);
  poison(memory, bytes);
  return {memory, &std::free};
}

// The numbers below `count`, each once: steps of a size coprime to it, from a random one on.
class BlockOrder {
 public:
  BlockOrder(std::uint64_t count, Random& random) : count_(count), next_(random.next() % count) {
    do {
      step_ = 1 + random.next() % count;
    } while (std::gcd(step_, count) != 1);
  }
  std::uint64_t next() { return std::exchange(next_, (next_ + step_) % count_); }

 private:
  std::uint64_t count_, next_, step_ = 1;
};

std::uint64_t seed_of_environment() {
  const char* text = std::getenv("ORTHANT_SIMT_SEED");
  if (text == nullptr) {
    return 1;
  }
  char* end = nullptr;
  const std::uint64_t seed = std::strtoull(text, &end, 10);
  require(end != text && *end == '\0', "ORTHANT_SIMT_SEED must be a number, got \"{}\"", text);
  return seed;
}

struct Architecture {
  std::string_view name;
  int number;
  std::size_t shared_bytes;
};
constexpr std::array<Architecture, 6> architectures = {{{"80", 80, 163 * 1024},
                                                        {"86", 86, 99 * 1024},
                                                        {"89", 89, 99 * 1024},
                                                        {"90", 90, 227 * 1024},
                                                        {"100", 100, 227 * 1024},
                                                        {"120", 120, 99 * 1024}}};

const Architecture& chosen_architecture() {
  const char* text = std::getenv("ORTHANT_SIMT_ARCHITECTURE");
  const std::string_view name = text == nullptr ? "80" : text;
  const auto* found = std::ranges::find(architectures, name, &Architecture::name);
  require(found != architectures.end(), "ORTHANT_SIMT_ARCHITECTURE must be 80, 86, 89, 90, 100 or 120, got \"{}\"",
          name);
  return *found;
}

// Of the process, as the driver's is of a GPU.
struct AllowedShared {
  std::mutex mutex;
  std::unordered_map<const void*, std::size_t> bytes;
};
AllowedShared& allowed_by_kernel() {
  static AllowedShared one;
  return one;
}

class Engine {
 public:
  void run(const Launch& launch, void (*body)(const void*), const void* argument);
  void reseed(std::uint64_t seed) {
    seed_ = seed;
    launches_ = 0;
  }
  // counted: it is the GPU's, which has so much and no more.
  void* static_shared(const void* tag, std::size_t bytes, std::size_t alignment, bool counted);
  void* dynamic_shared() { return dynamic_.get(); }
  std::uint64_t block_number() const { return blocks_; }
  Block& block(const char* function) {
    require(position != nullptr, "{} was called outside of a kernel", function);
    return block_;
  }

 private:
  struct SharedVariable {
    const void* tag;
    std::size_t bytes;
    Memory memory;
  };

  void run_blocks(Random& random, void (*body)(const void*), const void* argument);

  std::uint64_t seed_ = seed_of_environment();
  std::uint64_t launches_ = 0, blocks_ = 0;
  Launch launch_{};
  Position position_{};
  Block block_;
  std::vector<SharedVariable> static_;
  std::size_t static_bytes_ = 0;
  Memory dynamic_{nullptr, &std::free};
};

void Engine::run(const Launch& launch, void (*body)(const void*), const void* argument) {
  require(position == nullptr, "a kernel launches a kernel ({}): not supported", text(launch.where));
  require(launch.threads >= 1 && launch.threads <= block_threads_limit, "a block has 1 to {} threads, got {} ({})",
          block_threads_limit, launch.threads, text(launch.where));
  require(launch.blocks.x <= 2147483647u && launch.blocks.y <= 65535 && launch.blocks.z <= 65535,
          "a grid has at most 2147483647 x 65535 x 65535 blocks, got {} x {} x {} ({})", launch.blocks.x,
          launch.blocks.y, launch.blocks.z, text(launch.where));
  require(launch.shared_bytes <= shared_limit(), "a block has at most {} bytes of shared memory, got {} ({})",
          shared_limit(), launch.shared_bytes, text(launch.where));
  launch_ = launch;
  const std::uint64_t number = ++launches_;
  Random random(seed_ * 0xD1342543DE82EF95u + number);
  position = &position_;
  const auto end = [this] {
    position = nullptr;
    static_.clear();  // AddressSanitizer sees who keeps an address
    static_bytes_ = 0;
    dynamic_.reset();
  };
  try {
    dynamic_ = poisoned_memory(launch.shared_bytes, 128);
    run_blocks(random, body, argument);
  } catch (const Error& error) {
    end();
    throw Error(
        fmt::format("kernel launched at {}, {}; launch {} of seed {}", text(launch.where), error.what(), number, seed_),
        error.code());
  } catch (...) {
    end();
    throw;
  }
  end();
}

void Engine::run_blocks(Random& random, void (*body)(const void*), const void* argument) {
  const dim3 grid = launch_.blocks;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  if (blocks == 0) {
    return;
  }
  BlockOrder order(blocks, random);
  position_.grid_size = grid;
  position_.block_size = dim3(static_cast<unsigned>(launch_.threads));
  for (std::uint64_t k = 0; k < blocks; ++k) {
    const std::uint64_t index = order.next();
    position_.block = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
                       static_cast<unsigned>(index / grid.x / grid.y)};
    for (const SharedVariable& variable : static_) {
      poison(variable.memory.get(), variable.bytes);
    }
    poison(dynamic_.get(), launch_.shared_bytes);
    ++blocks_;
    block_.run(launch_.threads, position_, random, body, argument);
  }
}

void* Engine::static_shared(const void* tag, std::size_t bytes, std::size_t alignment, bool counted) {
  for (const SharedVariable& variable : static_) {
    if (variable.tag == tag) {
      return variable.memory.get();
    }
  }
  static_bytes_ += counted ? (bytes + 15) / 16 * 16 : 0;
  if (static_bytes_ > static_shared_limit || static_bytes_ + launch_.shared_bytes > shared_limit()) {
    block("ORTHANT_SHARED")
        .fail_here(fmt::format("{} bytes of static and {} of dynamic shared memory: a block has at most {} static, and "
                               "{} in all",
                               static_bytes_, launch_.shared_bytes, static_shared_limit, shared_limit()));
  }
  static_.push_back({tag, bytes, poisoned_memory(bytes, std::max<std::size_t>(alignment, 16))});
  return static_.back().memory.get();
}

Engine& engine() {
  static thread_local Engine engine;
  return engine;
}

}  // namespace

int architecture() {
  return chosen_architecture().number;
}

std::size_t shared_limit() {
  return chosen_architecture().shared_bytes;
}

std::size_t allowed_shared(const void* kernel) {
  AllowedShared& all = allowed_by_kernel();
  const std::lock_guard lock(all.mutex);
  const auto found = all.bytes.find(kernel);
  return found == all.bytes.end() ? static_shared_limit : found->second;
}

void allow_shared(const void* kernel, std::size_t bytes) {
  AllowedShared& all = allowed_by_kernel();
  const std::lock_guard lock(all.mutex);
  all.bytes[kernel] = bytes;
}

void check_allowed(const Launch& launch, const void* kernel) {
  if (launch.shared_bytes > static_shared_limit && launch.shared_bytes <= shared_limit()) {
    const std::size_t allowed = allowed_shared(kernel);
    require(launch.shared_bytes <= allowed,
            "the kernel has been allowed {} bytes of dynamic shared memory, got {} ({}): give the launch "
            "CudaDevice::shared",
            allowed, launch.shared_bytes, text(launch.where));
  }
}

void run(const Launch& launch, void (*body)(const void*), const void* argument) {
  engine().run(launch, body, argument);
}

void reseed(std::uint64_t seed) {
  engine().reseed(seed);
}

void* static_shared_bytes(const void* tag, std::size_t bytes, std::size_t alignment) {
  return engine().static_shared(tag, bytes, alignment, true);
}

void* exchange_bytes(const void* tag, std::size_t bytes, std::size_t alignment) {
  return engine().static_shared(tag, bytes, alignment, false);
}

void* dynamic_shared_bytes() {
  return engine().dynamic_shared();
}

int block_barrier(const char* function, bool predicate, const std::source_location& where) {
  return engine().block(function).barrier(function, predicate, where);
}

std::uint64_t warp_collective(Collective kind, const char* function, unsigned mask, std::uint64_t value, int source,
                              const std::source_location& where) {
  return engine().block(function).collective(kind, function, mask, value, source, where);
}

std::uint64_t block_number() {
  return engine().block_number();
}

void launch_node(const Launch& how, CUstream_st* stream, const void* kernel, const NodeKernel& node,
                 void* const* parameters) {
  check_allowed(how, kernel);
  const Bind bind = [how, kernel, node](void* const* from) -> std::function<void()> {
    std::vector<std::vector<std::byte>> values;
    for (std::size_t i = 0; i < node.sizes.size(); ++i) {
      const auto* const first = static_cast<const std::byte*>(from[i]);
      values.emplace_back(first, first + node.sizes[i]);
    }
    return [how, kernel, node, values = std::move(values)]() mutable {
      std::vector<void*> at;
      for (std::vector<std::byte>& value : values) {
        at.push_back(value.data());
      }
      const auto body = [&] { node.call(kernel, at.data()); };
      using Body = decltype(body);
      run(
          how, [](const void* one) { (*static_cast<const Body*>(one))(); }, &body);
    };
  };
  give(stream, kernel, bind(parameters), bind);
}

void misuse(const std::string& what, const std::source_location& where) {
  engine().block(what.c_str()).fail_here(fmt::format("{} ({})", what, text(where)));
}

}  // namespace orthant::simt
