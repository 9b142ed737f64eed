#include "io/checkpoint/parallel_ranges.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace sluice::io {

void parallel_ranges(int threads, int64_t count, int64_t smallest_range,
                     const std::function<void(int64_t begin, int64_t end)>& work) {
  if (count <= 0) return;
  const int64_t wanted = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  const int64_t parts =
      std::clamp<int64_t>(count / std::max<int64_t>(1, smallest_range), 1, wanted);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(parts));
  const auto run = [&](int64_t part) {
    try {
      work(count / parts * part + std::min(part, count % parts),
           count / parts * (part + 1) + std::min(part + 1, count % parts));
    } catch (...) {
      errors[static_cast<size_t>(part)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    helpers.reserve(static_cast<size_t>(parts - 1));
    for (int64_t part = 1; part < parts; ++part) helpers.emplace_back(run, part);
    run(0);
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace sluice::io
