#include "io/async/file_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/async/pread_engine.h"
#include "io/async/queued_engine.h"
#include "io/async/uring_engine.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/mutex.h"

namespace sluice::io {

namespace {

/// Calls `start` with a completion and waits for that.
template <typename Start>
void wait_for(Start start) {
  SLUICE_ASSERT(!is_in_completion(), "a completion must not wait for the engine");
  struct End {
    Mutex mutex;
    Condition changed;
    bool has_come SLUICE_GUARDED_BY(mutex) = false;
    std::exception_ptr error SLUICE_GUARDED_BY(mutex);
  };
  const auto end = std::make_shared<End>();  // outlives the waiter by a moment
  start([end](std::exception_ptr error) {
    const MutexLock lock(end->mutex);
    end->error = std::move(error);
    end->has_come = true;
    end->changed.notify_all();
  });
  MutexLock lock(end->mutex);
  end->changed.wait(lock, [&end]() SLUICE_REQUIRES(end->mutex) { return end->has_come; });
  if (end->error) std::rethrow_exception(std::move(end->error));
}

constexpr int64_t kUringRequestBytes = kMiB;
constexpr int64_t kPreadRequestBytes = 4 * kMiB;

FileEngineOptions with_request(FileEngineOptions options, int64_t request_bytes) {
  if (options.request_bytes == 0)
    options.request_bytes = std::clamp(round_down(options.bytes_in_flight, kDirectAlignment),
                                       kDirectAlignment, request_bytes);
  return options;
}

std::unique_ptr<FileEngine> make_pread_engine(const FileEngineOptions& options) {
  return std::make_unique<PreadEngine>(with_request(options, kPreadRequestBytes));
}

}  // namespace

void FileEngine::read_now(std::span<const Extent> extents) {
  wait_for([&](Completion done) { read(extents, std::move(done)); });
}

void FileEngine::write_now(std::span<const Extent> extents) {
  wait_for([&](Completion done) { write(extents, std::move(done)); });
}

std::unique_ptr<FileEngine> make_file_engine(const FileEngineOptions& options) {
  if (options.mode == IoMode::kPread) return make_pread_engine(options);
  try {
    return std::make_unique<UringEngine>(with_request(options, kUringRequestBytes));
  } catch (const Error& error) {
    if (options.mode == IoMode::kUring || error.kind() != ErrorKind::kDevice) throw;
    auto engine = make_pread_engine(options);
    if (options.warn) options.warn(fmt::format("{}; using {}", error.text(), engine->describe()));
    return engine;
  }
}

Window aligned_window(int64_t offset, int64_t bytes) noexcept {
  const int64_t begin = round_down(offset, kDirectAlignment);
  return {begin, round_up(offset + bytes, kDirectAlignment) - begin};
}

}  // namespace sluice::io
