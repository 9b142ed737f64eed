#pragma once
// The book-keeping under every file engine: groups of extents wait here in order, are cut into
// requests within the bounds on what may be in flight, and come out finished when their last
// request is over. Invariants: a group is finished exactly once, and only with none of its requests
// in flight; a group that is partly issued is at the front of its lane, one that is wholly issued
// is in no lane. Not thread safe: QueuedEngine guards it with its mutex.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/async/file_engine.h"
#include "io/files/owned_fd.h"
#include "src/base/error.h"

namespace sluice::io {

/// Which way bytes go.
enum class Direction { kRead = 0, kWrite = 1 };

/// A file of an engine; alive as long as a group of it.
struct OpenFile {
  OwnedFd fd;
  std::string name;
  std::shared_ptr<void> known_as;  ///< a transport's own handle of it, given up before fd
  std::atomic<bool> is_direct{false};
  std::atomic<bool> drops_cache{
      false};  // read through the page cache although direct I/O was wanted
};

/// One call of read() or write().
struct Group {
  struct Piece {
    std::shared_ptr<OpenFile> file;
    int64_t offset;
    int64_t bytes;
    int64_t required_bytes;
    std::byte* memory;
  };
  Direction direction = Direction::kRead;
  Completion done;
  std::vector<Piece> pieces;
  std::exception_ptr error;

  // The queue's own notes.
  size_t next_piece = 0;
  int64_t next_byte = 0;  // in that piece
  int64_t in_flight = 0;  // requests
  bool is_queued = false;
};

/// What is given to the kernel: read or write memory[progress, bytes) at file offset + progress.
struct Request {
  std::shared_ptr<Group> group;  // keeps `file` alive
  OpenFile* file = nullptr;
  Direction direction = Direction::kRead;
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t required_bytes = 0;
  std::byte* memory = nullptr;
  int64_t progress = 0;
  int retries = 0;         // without progress
  bool is_direct = false;  // as the file was when the request was issued
};

class RequestQueue {
 public:
  struct Limits {
    int64_t request_bytes;    // largest request
    int64_t bytes_in_flight;  // of each direction; one request may always be in flight
    int requests_in_flight;   // of each direction
  };
  explicit RequestQueue(const Limits& limits) : limits_(limits) {}

  void push(std::shared_ptr<Group> group);
  /// Ends a group that was never pushed, with `error`.
  void push_failed(std::shared_ptr<Group> group, const Error& error);
  /// The next request within the bounds, now counted as in flight; reads and writes take turns.
  std::optional<Request> next();
  /// `request` is over: `moved` bytes were read or written, `error` is null or becomes the group's.
  void end(const Request& request, int64_t moved, std::exception_ptr error);
  /// Drops all that is not in flight; those groups end with `error`.
  void cancel(const Error& error);
  /// Groups that ended since the last call, in that order.
  std::vector<std::shared_ptr<Group>> take_finished();

  bool can_issue() const;
  bool has_finished() const noexcept { return !finished_.empty(); }
  /// Nothing waits, is in flight, or is finished and not taken.
  bool is_idle() const noexcept;
  EngineCounters counters() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Lane {
    std::deque<std::shared_ptr<Group>> queued;
    int64_t bytes_in_flight = 0;
    int requests_in_flight = 0;
    int64_t bytes_moved = 0;
    double busy_seconds = 0;
    Clock::time_point busy_since;
  };
  Lane& lane(Direction direction) { return lanes_[static_cast<size_t>(direction)]; }
  /// Size of the request that the lane could issue now; empty: none.
  std::optional<int64_t> issuable(const Lane& lane) const;
  Request issue(Lane& lane, int64_t bytes);
  void leave_queue(Lane& lane);
  static double busy_seconds(const Lane& lane, Clock::time_point now);

  Limits limits_;
  std::array<Lane, 2> lanes_;
  size_t turn_ = 0;
  int64_t requests_ = 0;
  int64_t max_bytes_in_flight_ = 0;
  std::vector<std::shared_ptr<Group>> finished_;
};

}  // namespace sluice::io
