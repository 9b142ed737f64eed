#include "kernels/cuda/shim/fiber.h"

#include <sys/mman.h>

#include "src/base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace sluice::cuda::host {

#if defined(__x86_64__)
// Saves what a function call keeps, stores the stack pointer at *save and goes on at `to`.
extern "C" void sluice_switch_stack(void** save, void* to);
asm(R"(
.text
.globl sluice_switch_stack
.type sluice_switch_stack, @function
sluice_switch_stack:
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
.size sluice_switch_stack, .-sluice_switch_stack
.globl sluice_first_step
.type sluice_first_step, @function
sluice_first_step:
  movq %r12, %rdi
  callq *%r13
  ud2
.size sluice_first_step, .-sluice_first_step
)");
extern "C" void sluice_first_step();
#endif

Fiber::Fiber() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorKind::kResource, "no memory for the stack of a fiber",
                "free memory, or raise the limit on mappings (vm.max_map_count)");
  stack_ = static_cast<std::byte*>(memory);
}

namespace {
// What functions that never returned have fenced off: the memory serves others after us.
void forget_frames([[maybe_unused]] std::byte* stack) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, Fiber::kStackBytes);
#endif
}
}  // namespace

Fiber::~Fiber() {
  forget_frames(stack_);
  munmap(stack_, kStackBytes);
}

void Fiber::begin(Fiber* self) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->sanitizer_inside_, &self->outside_stack_,
                                  &self->outside_stack_bytes_);
#endif
  self->entry_(self->argument_);
}

void Fiber::start(Entry entry, void* argument) {
  entry_ = entry;
  argument_ = argument;
  sanitizer_inside_ = nullptr;
  forget_frames(stack_);
#if defined(__x86_64__)
  // As sluice_switch_stack would have left it: six registers, then where to return to.
  auto* top = reinterpret_cast<void**>(stack_ + kStackBytes - 16);
  top[-1] = reinterpret_cast<void*>(&sluice_first_step);
  top[-2] = nullptr;                                 // rbp
  top[-3] = nullptr;                                 // rbx
  top[-4] = this;                                    // r12
  top[-5] = reinterpret_cast<void*>(&Fiber::begin);  // r13
  top[-6] = nullptr;                                 // r14
  top[-7] = nullptr;                                 // r15
  inside_ = top - 7;
#else
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  static thread_local Fiber* starting;
  starting = this;
  makecontext(
      &inside_, [] { begin(starting); }, 0);
#endif
}

void Fiber::enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&sanitizer_outside_, stack_, kStackBytes);
#endif
#if defined(__x86_64__)
  sluice_switch_stack(&outside_, inside_);
#else
  swapcontext(&outside_, &inside_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_outside_, nullptr, nullptr);
#endif
}

void Fiber::leave([[maybe_unused]] Leave leave) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(leave == Leave::kForGood ? nullptr : &sanitizer_inside_,
                                 outside_stack_, outside_stack_bytes_);
#endif
#if defined(__x86_64__)
  sluice_switch_stack(&inside_, outside_);
#else
  swapcontext(&inside_, &outside_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_inside_, &outside_stack_, &outside_stack_bytes_);
#endif
}

}  // namespace sluice::cuda::host
