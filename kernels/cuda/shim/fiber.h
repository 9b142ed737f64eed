#pragma once
// A stack of its own to run a function on, left and entered again by hand: 10 ns a switch on x86-64
// (callee-saved registers and the stack pointer), ucontext elsewhere. The address sanitizer is told
// of every switch. One thread at a time.
#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace sluice::cuda::host {

class Fiber {
 public:
  using Entry = void (*)(void* argument);

  /// A stack of kStackBytes; nothing runs yet. Errors: kResource.
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the next enter() call entry(argument), whatever ran before. `entry` never returns: it
  /// ends with leave(kForGood).
  void start(Entry entry, void* argument);
  /// Runs the fiber until it leaves.
  void enter();
  enum class Leave : uint8_t { kForNow, kForGood };
  /// On the fiber: goes back to who entered it.
  void leave(Leave leave);

  static constexpr size_t kStackBytes = 256 << 10;

 private:
  static void begin(Fiber* self);

  std::byte* stack_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
#if defined(__x86_64__)
  void* inside_ = nullptr;   // stack pointer of the fiber while it is left
  void* outside_ = nullptr;  // of who entered it
#else
  ucontext_t inside_{};
  ucontext_t outside_{};
#endif
  void* sanitizer_inside_ = nullptr;
  void* sanitizer_outside_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_stack_bytes_ = 0;
};

}  // namespace sluice::cuda::host
