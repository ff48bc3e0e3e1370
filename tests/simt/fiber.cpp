#include "tests/simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <orthant/error.h>

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace orthant::simt {
namespace {

// A kernel's frame is what a GPU holds in registers; sanitizers make frames several times larger.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t stack_bytes = 256 * 1024;
#else
constexpr std::size_t stack_bytes = 128 * 1024;
#endif

std::size_t guard_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// The context that the running one was switched from: it learns its stack's bounds after its first switch.
constinit thread_local Context* switched_from = nullptr;

// First thing on the new stack.
void arrived([[maybe_unused]] Context& context) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context.fake_stack, &switched_from->stack, &switched_from->stack_bytes);
#endif
}

}  // namespace

#if defined(__x86_64__)
// Stores what a function must preserve (System V ABI) and the stack pointer, and loads the other's. swapcontext would
// do, but enters the kernel twice for the signal mask.
extern "C" void orthant_simt_swap(void** from, void* to);
extern "C" void orthant_simt_enter();
asm(R"(
  .text
  .p2align 4
  .hidden orthant_simt_swap
  .globl orthant_simt_swap
  .type orthant_simt_swap, @function
orthant_simt_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size orthant_simt_swap, . - orthant_simt_swap

  .p2align 4
  .hidden orthant_simt_enter
  .globl orthant_simt_enter
  .type orthant_simt_enter, @function
orthant_simt_enter:
  .cfi_startproc
  .cfi_undefined rip
  movq %r13, %rsi
  movq %r12, %rdi
  callq *%rbx
  ud2
  .cfi_endproc
  .size orthant_simt_enter, . - orthant_simt_enter
)");
#endif

void switch_context(Context& from, Context& to) {
  switched_from = &from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  from.thread_sanitizer = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.thread_sanitizer, 0);
#endif
#if defined(__x86_64__)
  orthant_simt_swap(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.state, &to.state);
#endif
  arrived(from);
}

Fiber::Fiber(void (*entry)(void*), void* argument, std::size_t number) : entry_(entry), argument_(argument) {
  const std::size_t guard = guard_bytes();
  memory_ =
      mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(memory_ != MAP_FAILED, "no memory for a fiber's stack of {} bytes", stack_bytes);
  mprotect(memory_, guard, PROT_NONE);
  auto* bottom = static_cast<std::byte*>(memory_) + guard;
  context_.stack = bottom;
  context_.stack_bytes = stack_bytes;
  const std::size_t used_bytes = stack_bytes - number % 61 * 64;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  const auto high = static_cast<unsigned>(self >> 32), low = static_cast<unsigned>(self);
#if defined(__x86_64__)
  // What orthant_simt_swap pops: r15, r14, r13, r12, rbx, rbp, and where it returns to. The stack pointer is then
  // aligned to 16, and orthant_simt_enter calls start(high, low).
  auto* top = reinterpret_cast<std::uintptr_t*>(bottom + used_bytes) - 9;
  top[2] = low;
  top[3] = high;
  top[4] = reinterpret_cast<std::uintptr_t>(&Fiber::start);
  top[6] = reinterpret_cast<std::uintptr_t>(&orthant_simt_enter);
  context_.stack_pointer = top;
#else
  getcontext(&context_.state);
  context_.state.uc_stack.ss_sp = bottom;
  context_.state.uc_stack.ss_size = used_bytes;
  context_.state.uc_link = nullptr;
  makecontext(&context_.state, reinterpret_cast<void (*)()>(&Fiber::start), 2, high, low);
#endif
#if defined(__SANITIZE_THREAD__)
  context_.thread_sanitizer = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(context_.thread_sanitizer);
#endif
  const std::size_t bytes = guard_bytes() + stack_bytes;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(context_.stack, context_.stack_bytes);
#endif
  munmap(memory_, bytes);
}

void Fiber::start(unsigned high, unsigned low) {
  auto& fiber = *reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 | low);
  arrived(fiber.context_);
  fiber.entry_(fiber.argument_);
}

}  // namespace orthant::simt
