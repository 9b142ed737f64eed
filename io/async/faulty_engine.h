#pragma once
// A file engine that goes wrong on purpose, for tests of what is built on engines: wraps a real one
// and fails, shortens or reorders the groups that its plan names. A damaged group always ends with
// an error: it never hands over wrong bytes as right ones. Thread safe as the engine inside; calls
// are numbered in the order in which they come.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/async/file_engine.h"
#include "src/base/error.h"
#include "src/base/mutex.h"

namespace sluice::io {

/// What goes wrong, and when.
struct FaultPlan {
  std::optional<int64_t>
      failing_read;    // number of the read() call (from 0) that fails and reads nothing
  int read_errno = 5;  // EIO
  std::optional<int64_t> failing_write;  // number of the write() call that fails and writes nothing
  int write_errno = 28;                  // ENOSPC
  std::optional<int64_t>
      shortened_read;  // read() call of which only a first part arrives, then "end of file"
  int64_t shortened_bytes = 0;  // that part, over all its extents, rounded down to kDirectAlignment
  int held_completions = 0;  // > 0: completions are held until so many are there (or nothing else
                             // is under way), and then run in reverse order
};

class FaultyEngine : public FileEngine {
 public:
  FaultyEngine(std::unique_ptr<FileEngine> inner, FaultPlan plan);
  ~FaultyEngine() override;

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
  std::string describe() const override;

  /// Calls of read() and of write() so far.
  int64_t reads() const;
  int64_t writes() const;

 private:
  struct Held {
    Completion done;
    std::exception_ptr error;
  };
  enum class Direction { kRead, kWrite };
  /// Passes the group on; it ends with `fault` if there is one.
  void forward(Direction direction, std::span<const Extent> extents, Completion done,
               const std::optional<Error>& fault);
  void finished(Completion done, std::exception_ptr error);

  const FaultPlan plan_;
  mutable Mutex mutex_;
  int64_t reads_ SLUICE_GUARDED_BY(mutex_) = 0;
  int64_t writes_ SLUICE_GUARDED_BY(mutex_) = 0;
  int64_t under_way_ SLUICE_GUARDED_BY(mutex_) = 0;  // groups in the inner engine
  std::vector<Held> held_ SLUICE_GUARDED_BY(mutex_);
  std::unique_ptr<FileEngine>
      inner_;  // last: dies first, and its completions still find the members above
};

}  // namespace sluice::io
