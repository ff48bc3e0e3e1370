// Fiber: a call stack of its own that an OS thread can leave in the middle of a function and come back to.
//
// Thread safety: none; a fiber belongs to the OS thread that made it. AddressSanitizer and ThreadSanitizer are told of
// every switch.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace orthant::simt {

// Where an execution stands that is not running: a fiber, or the OS thread's own stack.
struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t state{};
#endif
  // For the sanitizers.
  const void* stack = nullptr;
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;
  void* thread_sanitizer = nullptr;
};

// Leaves `from` and goes on in `to`; returns when somebody switches back to `from`. Exceptions do not cross: a fiber's
// function catches its own.
void switch_context(Context& from, Context& to);

class Fiber {
 public:
  // `entry(argument)` starts at the first switch to context(), and must not return: it is left for good by a last
  // switch, when nothing is on its stack that needs a destructor. Fibers of different `number` begin at different
  // places of a page, so that they do not compete for the same lines of a cache.
  Fiber(void (*entry)(void*), void* argument, std::size_t number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  Context& context() { return context_; }

 private:
  static void start(unsigned high, unsigned low);  // the two halves of `this`: what makecontext can pass

  void (*entry_)(void*);
  void* argument_;
  void* memory_;  // a guard page, then the stack
  Context context_;
};

}  // namespace orthant::simt
