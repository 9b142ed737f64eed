#include "io/async/pread_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "src/base/error.h"

namespace sluice::io {

namespace {

int threads_for(const FileEngineOptions& options) {
  if (options.threads > 0) return options.threads;
  const int64_t requests = options.bytes_in_flight / std::max<int64_t>(options.request_bytes, 1);
  return static_cast<int>(std::clamp<int64_t>(requests, 1, 16));
}

int64_t carry_out(const Request& request) {
  const int fd = request.file->fd.get();
  std::byte* memory = request.memory + request.progress;
  const auto bytes = static_cast<size_t>(request.bytes - request.progress);
  const int64_t offset = request.offset + request.progress;
  const int64_t moved = request.direction == Direction::kRead ? ::pread(fd, memory, bytes, offset)
                                                              : ::pwrite(fd, memory, bytes, offset);
  return moved < 0 ? -errno : moved;
}

}  // namespace

PreadEngine::PreadEngine(const FileEngineOptions& options)
    : QueuedEngine(options, threads_for(options)), threads_per_direction_(threads_for(options)) {
  const int threads = 2 * threads_per_direction_;  // so that neither direction waits for the other
  try {
    while (static_cast<int>(threads_.size()) < threads) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    begin_stop();
    threads_.clear();
    throw Error(ErrorKind::kResource,
                fmt::format("starting {} I/O threads: {}", threads, error.code().message()),
                "raise the limit of processes (ulimit -u)");
  }
}

PreadEngine::~PreadEngine() {
  begin_stop();
  threads_.clear();
}

std::string PreadEngine::describe() const {
  return fmt::format("{} threads with pread, {}", threads_per_direction_, describe_sizes());
}

void PreadEngine::run() {
  become_engine_thread("sluice-pread");
  while (!is_drained()) {
    if (std::optional<Request> request = wait_next()) {
      while (settle(*request, carry_out(*request))) {
      }
    }
    deliver_finished();
  }
}

}  // namespace sluice::io
