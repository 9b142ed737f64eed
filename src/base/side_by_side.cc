#include "src/base/side_by_side.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace sluice {

int usable_processors() noexcept {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return 1;
}

void run_side_by_side(size_t count, const std::function<void(size_t)>& body) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next = 0;
  std::atomic<bool> has_failed = false;
  const auto work = [&]() noexcept {
    for (size_t i = next++; i < count && !has_failed; i = next++) {
      try {
        body(i);
      } catch (...) {
        errors[i] = std::current_exception();
        has_failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t most = std::min(count, static_cast<size_t>(usable_processors()));
    try {
      while (helpers.size() + 1 < most) helpers.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads are to be had: those do
    }
    work();
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace sluice
