#pragma once
// Asynchronous reads and writes of large files: the disk lanes' only way to the disk.
// A call hands over a group of extents and returns at once; the engine cuts them into requests,
// keeps a bounded number of bytes in flight and calls the group's completion exactly once, when
// none of its requests is in flight any more. Reads are issued in the order of the calls, and so
// are writes; a read and a write are not ordered against each other, and requests in flight finish
// in any order: wait for a completion before touching the same bytes again. Thread safe: every
// function may be called from any thread, also from a completion, unless it says otherwise.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "io/files/owned_fd.h"

namespace sluice::io {

/// Names an open file of one engine; never used twice by it.
using FileId = int32_t;

/// What direct I/O wants file offsets, lengths and memory addresses to be multiples of.
constexpr int64_t kDirectAlignment = 4096;

/// One run of bytes of a file and the memory for it. The memory belongs to the caller and must stay
/// alive, and (for a read) untouched, until the group's completion.
struct Extent {
  FileId file = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
  std::byte* memory = nullptr;
  /// Reads only: bytes from `offset` that the file must have; -1: all of `bytes`. The end of the
  /// file before that is an error, after it is fine. Memory past them is unspecified afterwards.
  /// Lets an aligned window reach past the end.
  int64_t required_bytes = -1;
};

/// Called exactly once with the group's first error, or null. Runs on a thread of the engine,
/// perhaps at the same time as another one; it must be short, must not throw, and must not block on
/// the engine.
using Completion = std::function<void(std::exception_ptr error)>;

/// What an engine has done since it was made.
struct EngineCounters {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  int64_t requests = 0;             // given to the kernel, reads and writes
  double read_busy_seconds = 0;     // time with at least one read in flight
  double write_busy_seconds = 0;    // time with at least one write in flight
  int64_t max_bytes_in_flight = 0;  // reads and writes together
};

/// Which of the system's ways is taken.
enum class IoMode { kAuto, kUring, kPread };

/// How files are read and written.
struct FileEngineOptions {
  IoMode mode = IoMode::kAuto;
  /// Largest request; a multiple of kDirectAlignment, at most 256 MiB. 0: what reads fastest, 1 MiB
  /// with io_uring; 4 MiB with pread, which has fewer in flight (docs/perf-notes.md).
  int64_t request_bytes = 0;
  /// Bound for the reads, and another of that size for the writes.
  int64_t bytes_in_flight = 64 << 20;
  /// pread only, for each of reading and writing; 0: fills bytes_in_flight, at most 16.
  int threads = 0;
  /// False: through the page cache.
  bool direct = true;
  /// Through the page cache: what was read does not stay there. For those whose memory group counts
  /// that cache and has no room for it.
  bool drops_cache = false;
  /// Gets one line at a time, without newline, from any thread; may be empty.
  std::function<void(std::string_view)> log;
  /// The same for what somebody should know who did not ask: a slower way than the one asked for.
  std::function<void(std::string_view)> warn;
};

class FileEngine {
 public:
  FileEngine() = default;
  FileEngine(const FileEngine&) = delete;
  FileEngine& operator=(const FileEngine&) = delete;
  /// Cancels what is pending, waits for what is in flight; every completion has run afterwards.
  virtual ~FileEngine() = default;

  /// Opens an existing regular file (or block device) for direct reading. Where the file system
  /// refuses direct I/O it reads through the page cache, drops from it what was read, and warns
  /// once. Errors: kFile with path and cause.
  virtual FileId open_for_read(const std::string& path) = 0;
  /// Takes over an open file; `name` stands in error texts, `is_direct` says that it was opened
  /// with O_DIRECT.
  virtual FileId adopt(OwnedFd fd, std::string name, bool is_direct) = 0;
  /// Forgets the file; requests that it still has are finished first, in the background.
  virtual void close(FileId file) = 0;
  /// False also after the file system turned out to refuse direct I/O.
  virtual bool is_direct(FileId file) const = 0;
  /// Bytes in the file now.
  virtual int64_t size(FileId file) const = 0;

  /// Starts reading all extents; returns at once. Direct files want every offset, length and
  /// address aligned. The completion gets kFile (read error, early end of file, with path, offset
  /// and sizes) or kCancelled.
  virtual void read(std::span<const Extent> extents, Completion done) = 0;
  /// Starts writing all extents; returns at once. The completion gets kResource (no space, file too
  /// large), kFile or kCancelled; after an error it is unspecified which of the group's bytes were
  /// written.
  virtual void write(std::span<const Extent> extents, Completion done) = 0;
  /// The same, waiting for the end and throwing the error. Not from a completion.
  void read_now(std::span<const Extent> extents);
  void write_now(std::span<const Extent> extents);

  /// Pins `memory` for cheaper requests inside it, where the kernel grants that; returns the bytes
  /// that it granted (0 is normal and harmless). It must be unregistered before it is freed. Not
  /// from a completion.
  virtual int64_t register_memory(std::span<std::byte> memory) = 0;
  /// Ends the registration made with the same span; unknown memory is ignored. Not from a
  /// completion.
  virtual void unregister_memory(std::span<std::byte> memory) = 0;

  /// Requests not yet given to the kernel are dropped and their groups end with kCancelled, once
  /// their requests in flight have finished. Groups that are wholly in flight end as ever.
  virtual void cancel_pending() = 0;

  virtual EngineCounters counters() const = 0;
  /// "io_uring, O_DIRECT, 4MiB requests, 64MiB in flight".
  virtual std::string describe() const = 0;
};

/// io_uring where the kernel allows it, else threads with pread and pwrite, and a warning says why
/// in one line. Errors: kUser for sizes out of range; kDevice when IoMode::kUring was asked for and
/// is refused.
std::unique_ptr<FileEngine> make_file_engine(const FileEngineOptions& options);

/// A range of a file.
struct Window {
  int64_t offset = 0;
  int64_t bytes = 0;
};
/// The smallest aligned window that covers [offset, offset + bytes); may reach past the end of the
/// file.
Window aligned_window(int64_t offset, int64_t bytes) noexcept;

}  // namespace sluice::io
