#pragma once
// What io_uring and the pread threads have in common: open files, the queue of requests, what a
// result of the kernel means (short, retried, end of file, direct I/O refused), completions. A
// transport derives from it, takes requests, carries them out and settles them. Thread safe: mutex_
// guards the files and the queue.
#include <optional>
#include <string>
#include <unordered_map>

#include "io/async/file_engine.h"
#include "io/async/request_queue.h"
#include "src/base/mutex.h"

namespace sluice::io {

class QueuedEngine : public FileEngine {
 public:
  FileId open_for_read(const std::string& path) override;
  FileId adopt(OwnedFd fd, std::string name, bool is_direct) override;
  void close(FileId file) override;
  bool is_direct(FileId file) const override;
  int64_t size(FileId file) const override;
  void read(std::span<const Extent> extents, Completion done) override;
  void write(std::span<const Extent> extents, Completion done) override;
  int64_t register_memory(std::span<std::byte> memory) override;
  void unregister_memory(std::span<std::byte> memory) override;
  void cancel_pending() override;
  EngineCounters counters() const override;

 protected:
  /// `requests_in_flight`: bound for each direction. Errors: kUser for sizes out of range.
  QueuedEngine(const FileEngineOptions& options, int requests_in_flight);

  /// Sets OpenFile::known_as of a file that has had no request yet.
  void set_known_as(FileId file, std::shared_ptr<void> handle);

  /// Called without the lock when there may be something new to do; wakes a transport that does not
  /// use wait_next().
  virtual void wake() {}

  /// A request to carry out, if the bounds allow one now.
  std::optional<Request> try_next();
  /// Waits for one; empty: there are completions to deliver, or the engine has stopped and drained.
  std::optional<Request> wait_next();
  /// Takes the kernel's answer (bytes moved or -errno). True: not over, carry out again from
  /// request.progress. False: over; deliver_finished() runs the completions that became due.
  bool settle(Request& request, int64_t result);
  /// Runs the due completions, without the lock; returns how many.
  int64_t deliver_finished();
  /// First thing in a transport's destructor: from now on everything not in flight is cancelled.
  void begin_stop();
  /// Stopped, and nothing is left in flight or undelivered: threads may leave.
  bool is_drained() const;

  void log(const std::string& line) const;
  /// "O_DIRECT, 4MiB requests, 64MiB in flight".
  std::string describe_sizes() const;
  const FileEngineOptions& options() const noexcept { return options_; }

 private:
  void submit(Direction direction, std::span<const Extent> extents, Completion done);
  Group::Piece checked_piece(Direction direction, const Extent& extent) const
      SLUICE_REQUIRES(mutex_);
  std::shared_ptr<OpenFile> find(FileId file) const SLUICE_REQUIRES(mutex_);
  FileId add(std::shared_ptr<OpenFile> file);
  bool go_on_after_error(Request& request, int error_number, std::exception_ptr& error);
  bool go_on_after_bytes(Request& request, int64_t moved, std::exception_ptr& error);
  void give_up_direct(OpenFile& file);

  const FileEngineOptions options_;
  std::atomic<bool> direct_was_refused_{false};

  mutable Mutex mutex_;
  Condition work_;
  std::unordered_map<FileId, std::shared_ptr<OpenFile>> files_ SLUICE_GUARDED_BY(mutex_);
  FileId next_file_ SLUICE_GUARDED_BY(mutex_) = 0;
  RequestQueue queue_ SLUICE_GUARDED_BY(mutex_);
  bool is_stopping_ SLUICE_GUARDED_BY(mutex_) = false;
};

/// This thread is running a completion: it must not wait for the engine.
bool is_in_completion() noexcept;

/// First thing on an engine's thread: its name, and signals stay with the program's own threads.
void become_engine_thread(const char* name) noexcept;

/// The options with their sizes checked. Errors: kUser.
FileEngineOptions checked(FileEngineOptions options);

}  // namespace sluice::io
