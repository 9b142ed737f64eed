#include "io/async/queued_engine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/system_error.h"

namespace sluice::io {

namespace {

/// Answers without progress (interrupted, again, nothing moved) in a row before a request is an
/// error.
constexpr int kMaxRetries = 100;

thread_local bool in_completion = false;

const char* verb(Direction direction) {
  return direction == Direction::kRead ? "reading" : "writing";
}

std::string where(const Request& request) {
  return fmt::format("{} {} at offset {} of {}", verb(request.direction),
                     format_bytes(request.bytes), request.offset, request.file->name);
}

bool is_aligned(int64_t value) { return value % kDirectAlignment == 0; }

/// Bytes in a file or block device; -1 where it can't be told.
int64_t size_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return -1;
  if (S_ISREG(status.st_mode)) return status.st_size;
  uint64_t device_bytes = 0;
  if (S_ISBLK(status.st_mode) && ::ioctl(fd, BLKGETSIZE64, &device_bytes) == 0) {
    return static_cast<int64_t>(device_bytes);
  }
  errno = EINVAL;
  return -1;
}

void check_can_be_read_at_random(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw system_error(errno, "opening " + path);
  if (S_ISDIR(status.st_mode)) throw system_error(EISDIR, "opening " + path);
  if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
    throw Error(ErrorKind::kFile, "opening " + path + ": not a regular file",
                "name a file on a disk, not a pipe, socket or character device");
  }
}

}  // namespace

bool is_in_completion() noexcept { return in_completion; }

void become_engine_thread(const char* name) noexcept {
  ::pthread_setname_np(::pthread_self(), name);
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

FileEngineOptions checked(FileEngineOptions options) {
  if (options.request_bytes < kDirectAlignment || options.request_bytes > 256 * kMiB ||
      !is_aligned(options.request_bytes)) {
    throw Error(ErrorKind::kUser,
                fmt::format("a read request of {} bytes can't be used", options.request_bytes),
                "choose a multiple of 4096 from 4KiB to 256MiB");
  }
  if (options.bytes_in_flight < options.request_bytes) {
    throw Error(
        ErrorKind::kUser,
        fmt::format("{} in flight hold no request of {}", format_bytes(options.bytes_in_flight),
                    format_bytes(options.request_bytes)),
        "allow at least one whole request in flight");
  }
  if (options.threads < 0 || options.threads > 256) {
    throw Error(ErrorKind::kUser, fmt::format("{} I/O threads can't be used", options.threads),
                "choose 1 to 256, or 0 for a fitting number");
  }
  return options;
}

QueuedEngine::QueuedEngine(const FileEngineOptions& options, int requests_in_flight)
    : options_(checked(options)),
      queue_({options.request_bytes, options.bytes_in_flight, requests_in_flight}) {}

void QueuedEngine::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

std::string QueuedEngine::describe_sizes() const {
  const char* way = !options_.direct      ? "page cache"
                    : direct_was_refused_ ? "page cache where direct I/O is refused"
                                          : "O_DIRECT";
  return fmt::format("{}, {} requests, {} in flight", way, format_bytes(options_.request_bytes),
                     format_bytes(options_.bytes_in_flight));
}

FileId QueuedEngine::open_for_read(const std::string& path) {
  check_can_be_read_at_random(path);
  auto file = std::make_shared<OpenFile>();
  file->name = path;
  constexpr int kFlags = O_RDONLY | O_CLOEXEC;
  if (options_.direct) file->fd.reset(::open(path.c_str(), kFlags | O_DIRECT));
  file->is_direct = static_cast<bool>(file->fd);
  if (!file->fd) {
    const bool was_refused = options_.direct && errno == EINVAL;
    file->fd.reset(::open(path.c_str(), kFlags));
    if (!file->fd) throw system_error(errno, "opening " + path);
    if (was_refused) give_up_direct(*file);
    if (!options_.direct && options_.drops_cache) file->drops_cache = true;
  }
  return add(std::move(file));
}

FileId QueuedEngine::adopt(OwnedFd fd, std::string name, bool is_direct) {
  SLUICE_ASSERT(fd, "an engine adopts open files only");
  auto file = std::make_shared<OpenFile>();
  file->fd = std::move(fd);
  file->name = std::move(name);
  file->is_direct = is_direct;
  return add(std::move(file));
}

FileId QueuedEngine::add(std::shared_ptr<OpenFile> file) {
  const MutexLock lock(mutex_);
  SLUICE_ASSERT(next_file_ < std::numeric_limits<FileId>::max(), "file numbers are used once only");
  files_.emplace(next_file_, std::move(file));
  return next_file_++;
}

void QueuedEngine::set_known_as(FileId file, std::shared_ptr<void> handle) {
  const MutexLock lock(mutex_);
  find(file)->known_as = std::move(handle);
}

void QueuedEngine::close(FileId file) {
  std::shared_ptr<OpenFile> last;  // closes, perhaps slowly, after the lock is given back
  const MutexLock lock(mutex_);
  const auto found = files_.find(file);
  SLUICE_ASSERT(found != files_.end(), "only open files are closed");
  last = std::move(found->second);
  files_.erase(found);
}

std::shared_ptr<OpenFile> QueuedEngine::find(FileId file) const {
  const auto found = files_.find(file);
  SLUICE_ASSERT(found != files_.end(), "only open files are used");
  return found->second;
}

bool QueuedEngine::is_direct(FileId file) const {
  const MutexLock lock(mutex_);
  return find(file)->is_direct;
}

int64_t QueuedEngine::size(FileId file) const {
  std::shared_ptr<OpenFile> open;
  {
    const MutexLock lock(mutex_);
    open = find(file);
  }
  const int64_t bytes = size_of(open->fd.get());
  if (bytes < 0) throw system_error(errno, "asking for the size of " + open->name);
  return bytes;
}

void QueuedEngine::read(std::span<const Extent> extents, Completion done) {
  submit(Direction::kRead, extents, std::move(done));
}

void QueuedEngine::write(std::span<const Extent> extents, Completion done) {
  submit(Direction::kWrite, extents, std::move(done));
}

Group::Piece QueuedEngine::checked_piece(Direction direction, const Extent& extent) const {
  Group::Piece piece{find(extent.file), extent.offset, extent.bytes, extent.bytes, extent.memory};
  if (direction == Direction::kRead && extent.required_bytes != -1) {
    piece.required_bytes = extent.required_bytes;
  }
  SLUICE_ASSERT(extent.offset >= 0 && extent.bytes >= 0 &&
                    extent.bytes <= std::numeric_limits<int64_t>::max() - extent.offset,
                "an extent lies within the file's numbers");
  SLUICE_ASSERT(extent.bytes == 0 || extent.memory != nullptr, "an extent has memory");
  SLUICE_ASSERT(piece.required_bytes >= 0 && piece.required_bytes <= extent.bytes,
                "no more is required than is asked for");
  SLUICE_ASSERT(!piece.file->is_direct ||
                    (is_aligned(extent.offset) && is_aligned(extent.bytes) &&
                     is_aligned(static_cast<int64_t>(reinterpret_cast<uintptr_t>(extent.memory)))),
                "extents of direct files are aligned");
  return piece;
}

void QueuedEngine::submit(Direction direction, std::span<const Extent> extents, Completion done) {
  SLUICE_ASSERT(done, "every group has a completion");
  auto group = std::make_shared<Group>();
  group->direction = direction;
  group->done = std::move(done);
  group->pieces.reserve(extents.size());
  {
    const MutexLock lock(mutex_);
    for (const Extent& extent : extents) group->pieces.push_back(checked_piece(direction, extent));
    if (is_stopping_) {
      queue_.push_failed(std::move(group),
                         Error(ErrorKind::kCancelled, "the file engine has stopped"));
    } else {
      queue_.push(std::move(group));
    }
  }
  work_.notify_one();
  wake();
}

int64_t QueuedEngine::register_memory(std::span<std::byte>) { return 0; }
void QueuedEngine::unregister_memory(std::span<std::byte>) {}

void QueuedEngine::cancel_pending() {
  {
    const MutexLock lock(mutex_);
    queue_.cancel(
        Error(ErrorKind::kCancelled, "reading or writing was cancelled before it was done"));
  }
  work_.notify_all();
  wake();
}

void QueuedEngine::begin_stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  cancel_pending();
}

bool QueuedEngine::is_drained() const {
  const MutexLock lock(mutex_);
  return is_stopping_ && queue_.is_idle();
}

EngineCounters QueuedEngine::counters() const {
  const MutexLock lock(mutex_);
  return queue_.counters();
}

std::optional<Request> QueuedEngine::try_next() {
  const MutexLock lock(mutex_);
  return queue_.next();
}

std::optional<Request> QueuedEngine::wait_next() {
  MutexLock lock(mutex_);
  work_.wait(lock, [this]() SLUICE_REQUIRES(mutex_) {
    return queue_.can_issue() || queue_.has_finished() || (is_stopping_ && queue_.is_idle());
  });
  if (queue_.has_finished()) return std::nullopt;
  std::optional<Request> request = queue_.next();
  if (queue_.can_issue()) work_.notify_one();
  return request;
}

int64_t QueuedEngine::deliver_finished() {
  std::vector<std::shared_ptr<Group>> finished;
  {
    const MutexLock lock(mutex_);
    finished = queue_.take_finished();
    if (is_stopping_) work_.notify_all();
  }
  for (const std::shared_ptr<Group>& group : finished) {
    // Moved out: the caller gets the only reference to the error, and what the completion captured
    // goes here, not where another thread happens to drop the group's last request.
    const Completion done = std::move(group->done);
    in_completion = true;
    try {
      done(std::move(group->error));
    } catch (const std::exception& error) {
      log(fmt::format("a file completion threw, which it must not: {}", error.what()));
    }
    in_completion = false;
  }
  return static_cast<int64_t>(finished.size());
}

bool QueuedEngine::settle(Request& request, int64_t result) {
  std::exception_ptr error;
  const bool goes_on = result < 0 ? go_on_after_error(request, static_cast<int>(-result), error)
                                  : go_on_after_bytes(request, result, error);
  if (goes_on) return true;
  if (request.direction == Direction::kRead && request.file->drops_cache) {
    ::posix_fadvise(request.file->fd.get(), request.offset, request.bytes, POSIX_FADV_DONTNEED);
  }
  {
    const MutexLock lock(mutex_);
    queue_.end(request, request.progress, std::move(error));
  }
  work_.notify_one();
  return false;
}

bool QueuedEngine::go_on_after_error(Request& request, int error_number,
                                     std::exception_ptr& error) {
  if (error_number == EINTR || error_number == EAGAIN) {
    if (++request.retries <= kMaxRetries) return true;
  } else if ((error_number == EINVAL || error_number == EOPNOTSUPP) && request.is_direct) {
    if (request.file->is_direct) give_up_direct(*request.file);
    request.is_direct = false;
    return true;
  }
  error = std::make_exception_ptr(system_error(error_number, where(request)));
  return false;
}

bool QueuedEngine::go_on_after_bytes(Request& request, int64_t moved, std::exception_ptr& error) {
  const int64_t got = request.progress + moved;
  const bool is_read = request.direction == Direction::kRead;
  if (got >= request.bytes || (is_read && got >= request.required_bytes)) {
    request.progress = got;
    return false;
  }
  const int64_t next = request.is_direct ? round_down(got, kDirectAlignment) : got;
  if (next > request.progress) {
    request.progress = next;
    request.retries = 0;
    return true;
  }
  const int64_t file_bytes = size_of(request.file->fd.get());
  if (is_read && file_bytes >= 0 && file_bytes < request.offset + request.required_bytes) {
    error = std::make_exception_ptr(
        Error(ErrorKind::kFile,
              fmt::format("{}: the file ends at {}, {} bytes early", where(request), file_bytes,
                          request.offset + request.required_bytes - file_bytes),
              "the file is cut off or was changed while in use; download or convert it again"));
    return false;
  }
  if (++request.retries <= kMaxRetries) return true;
  error = std::make_exception_ptr(
      Error(ErrorKind::kFile,
            fmt::format("{}: the system moves no bytes after the first {}", where(request), got),
            "check the disk and the file system"));
  return false;
}

void QueuedEngine::give_up_direct(OpenFile& file) {
  // The flag belongs to the open file, so requests issued from now on go through the page cache.
  const int flags = ::fcntl(file.fd.get(), F_GETFL);
  if (flags >= 0 && (flags & O_DIRECT) != 0) ::fcntl(file.fd.get(), F_SETFL, flags & ~O_DIRECT);
  file.is_direct = false;
  file.drops_cache = true;
  if (!direct_was_refused_.exchange(true) && options_.warn) {
    options_.warn(
        fmt::format("{}: the file system refuses direct I/O; going through the page cache "
                    "(slower; said once)",
                    file.name));
  }
}

}  // namespace sluice::io
