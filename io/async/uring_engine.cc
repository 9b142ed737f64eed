#include "io/async/uring_engine.h"

#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/mutex.h"
#include "src/base/system_error.h"

namespace sluice::io {

namespace {

constexpr unsigned kRegisteredBuffers = 1024;     // slots; an empty one costs the kernel a pointer
constexpr int64_t kRegisteredBufferBytes = kGiB;  // the kernel's cap for one slot

int requests_for(const FileEngineOptions& options) {
  // At least 128, so that small extents (single KV pages) also keep the disk busy.
  const int64_t requests = options.bytes_in_flight / std::max<int64_t>(options.request_bytes, 1);
  return static_cast<int>(std::clamp<int64_t>(requests, 128, 1024));
}

Error refusal(int error_number, const char* step) {
  const char* cause = "";
  if (error_number == EPERM || error_number == EACCES) {
    cause = " (blocked by the container's seccomp profile or by kernel.io_uring_disabled)";
  } else if (error_number == ENOSYS) {
    cause = " (the kernel was built without it, or is older than 5.1)";
  } else if (error_number == ENOMEM) {
    cause = " (the limit of locked memory may be too low, ulimit -l)";
  }
  return Error(
      ErrorKind::kDevice,
      fmt::format("io_uring can't be used: {}: {}{}", step, error_text(error_number), cause),
      "let sluice fall back to threads with pread");
}

// Held while a ring is mapped or unmapped. liburing does both by system calls of its own, so a
// watcher of threads does not see that one ring's memory has become another's: this orders them.
Mutex& mapping() {
  static Mutex mutex;
  return mutex;
}

}  // namespace

/// Used by the ring's thread only, but for the destructor, which runs when that is over, and
/// wake(), which any thread may call.
class UringEngine::Ring {
 public:
  explicit Ring(int requests);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void set_up();
  void wake() noexcept { ::eventfd_write(wake_fd_.get(), 1); }

  void prepare(Request request);
  /// Gives what is prepared to the kernel and, if asked, waits for a completion or a wake().
  void submit(bool waits);
  /// Takes the completions; `settle(request, result)` says whether the request goes on.
  template <typename Settle>
  void reap(Settle settle);

  int64_t register_memory(std::span<std::byte> memory);
  int64_t unregister_memory(std::span<std::byte> memory);

 private:
  static constexpr uint64_t kWakeUp = ~uint64_t{0};
  struct RegisteredPiece {
    const std::byte* end;
    unsigned buffer;
  };

  void require_operations();
  void round_trip();
  void prepare_slot(size_t slot);
  io_uring_sqe* next_sqe();
  /// The slot of registered memory that holds all of it, or -1.
  int registered_buffer(const std::byte* memory, int64_t bytes) const;

  io_uring ring_{};
  bool is_up_ = false;
  bool wake_up_is_armed_ = false;
  OwnedFd wake_fd_;
  std::vector<Request> slots_;
  std::vector<size_t> free_slots_;
  std::map<const std::byte*, RegisteredPiece> registered_;  // by first byte
  std::vector<unsigned> free_buffers_;                      // empty too where the kernel has none
};

UringEngine::Ring::Ring(int requests) : slots_(static_cast<size_t>(requests)) {
  for (size_t slot = slots_.size(); slot-- > 0;) free_slots_.push_back(slot);
}

UringEngine::Ring::~Ring() {
  if (!is_up_) return;
  const MutexLock lock(mapping());
  io_uring_queue_exit(&ring_);
}

void UringEngine::Ring::set_up() {
  wake_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_) throw refusal(errno, "eventfd");
  // The best the kernel knows: completions only when asked for (6.1), else without interrupting
  // (5.19), else plain.
  const unsigned kinds[] = {
#ifdef IORING_SETUP_DEFER_TASKRUN
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
#endif
#ifdef IORING_SETUP_COOP_TASKRUN
      IORING_SETUP_COOP_TASKRUN,
#endif
      0};
  const auto entries = static_cast<unsigned>(slots_.size() + 1);
  int result = -EINVAL;
  for (size_t kind = 0; kind < std::size(kinds) && result == -EINVAL; ++kind) {
    io_uring_params parameters{};
    parameters.flags = kinds[kind];
    const MutexLock lock(mapping());
    result = io_uring_queue_init_params(entries, &ring_, &parameters);
  }
  if (result < 0) throw refusal(-result, "io_uring_setup");
  is_up_ = true;
  require_operations();
  round_trip();
  const std::vector<iovec> none(kRegisteredBuffers, iovec{nullptr, 0});
  if (io_uring_register_buffers_tags(&ring_, none.data(), nullptr, kRegisteredBuffers) == 0) {
    for (unsigned buffer = kRegisteredBuffers; buffer-- > 0;) free_buffers_.push_back(buffer);
  }
}

void UringEngine::Ring::require_operations() {
  const std::unique_ptr<io_uring_probe, void (*)(io_uring_probe*)> probe(
      io_uring_get_probe_ring(&ring_), io_uring_free_probe);
  for (const int operation : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_POLL_ADD}) {
    if (!probe || io_uring_opcode_supported(probe.get(), operation) == 0) {
      throw refusal(ENOSYS, "plain reads and writes");
    }
  }
}

void UringEngine::Ring::round_trip() {
  io_uring_prep_nop(next_sqe());
  int result = 0;
  do {
    result = io_uring_submit_and_wait(&ring_, 1);
  } while (result == -EINTR);
  io_uring_cqe* cqe = nullptr;
  if (result >= 0) result = io_uring_peek_cqe(&ring_, &cqe);
  if (result < 0) throw refusal(-result, "io_uring_enter");
  io_uring_cqe_seen(&ring_, cqe);
}

io_uring_sqe* UringEngine::Ring::next_sqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  SLUICE_ASSERT(sqe != nullptr, "the ring has room for every slot and the wake-up");
  return sqe;
}

int UringEngine::Ring::registered_buffer(const std::byte* memory, int64_t bytes) const {
  auto after = registered_.upper_bound(memory);
  if (after == registered_.begin()) return -1;
  const RegisteredPiece& piece = std::prev(after)->second;
  return memory < piece.end && bytes <= piece.end - memory ? static_cast<int>(piece.buffer) : -1;
}

void UringEngine::Ring::prepare(Request request) {
  SLUICE_ASSERT(!free_slots_.empty(), "the queue issues no more requests than there are slots");
  const size_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = std::move(request);
  prepare_slot(slot);
}

void UringEngine::Ring::prepare_slot(size_t slot) {
  const Request& request = slots_[slot];
  const int fd = request.file->fd.get();
  std::byte* memory = request.memory + request.progress;
  const auto bytes = static_cast<unsigned>(request.bytes - request.progress);
  const auto offset = static_cast<uint64_t>(request.offset + request.progress);
  const int buffer = registered_buffer(memory, bytes);
  const bool is_read = request.direction == Direction::kRead;
  io_uring_sqe* sqe = next_sqe();
  if (buffer >= 0) {
    is_read ? io_uring_prep_read_fixed(sqe, fd, memory, bytes, offset, buffer)
            : io_uring_prep_write_fixed(sqe, fd, memory, bytes, offset, buffer);
  } else {
    is_read ? io_uring_prep_read(sqe, fd, memory, bytes, offset)
            : io_uring_prep_write(sqe, fd, memory, bytes, offset);
  }
  sqe->user_data = slot;
}

void UringEngine::Ring::submit(bool waits) {
  if (waits && !wake_up_is_armed_) {
    io_uring_sqe* sqe = next_sqe();
    io_uring_prep_poll_add(sqe, wake_fd_.get(), POLLIN);
    sqe->user_data = kWakeUp;
    wake_up_is_armed_ = true;
  }
  const int result = waits ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit(&ring_);
  if (result >= 0 || result == -EINTR || result == -EBUSY)
    return;                                      // the rest goes with the next call
  if (result == -EAGAIN || result == -ENOMEM) {  // the kernel is short of memory for now
    ::poll(nullptr, 0, 1);
    return;
  }
  // Ends the program: the kernel may still write to memory in flight, and nobody can tell any more
  // when it stops.
  throw Error(ErrorKind::kInternal, "io_uring_enter: " + error_text(-result));
}

template <typename Settle>
void UringEngine::Ring::reap(Settle settle) {
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
    const uint64_t slot = cqe->user_data;
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (slot == kWakeUp) {
      eventfd_t ignored = 0;
      ::eventfd_read(wake_fd_.get(), &ignored);
      wake_up_is_armed_ = false;
    } else if (settle(slots_[slot], result)) {
      prepare_slot(slot);
    } else {
      slots_[slot] = Request{};
      free_slots_.push_back(slot);
    }
  }
}

int64_t UringEngine::Ring::register_memory(std::span<std::byte> memory) {
  int64_t granted = 0;
  const auto size = static_cast<int64_t>(memory.size());
  while (granted < size && !free_buffers_.empty()) {
    std::byte* start = memory.data() + granted;
    const int64_t bytes = std::min(size - granted, kRegisteredBufferBytes);
    const iovec piece{start, static_cast<size_t>(bytes)};
    const unsigned buffer = free_buffers_.back();
    if (registered_.contains(start) ||
        io_uring_register_buffers_update_tag(&ring_, buffer, &piece, nullptr, 1) < 0) {
      break;
    }
    free_buffers_.pop_back();
    registered_.emplace(start, RegisteredPiece{start + bytes, buffer});
    granted += bytes;
  }
  return granted;
}

int64_t UringEngine::Ring::unregister_memory(std::span<std::byte> memory) {
  int64_t released = 0;
  auto piece = registered_.lower_bound(memory.data());
  while (piece != registered_.end() && piece->first < memory.data() + memory.size()) {
    const iovec none{nullptr, 0};
    io_uring_register_buffers_update_tag(&ring_, piece->second.buffer, &none, nullptr, 1);
    free_buffers_.push_back(piece->second.buffer);
    released += piece->second.end - piece->first;
    piece = registered_.erase(piece);
  }
  return released;
}

/// Requests from other threads to the ring's thread, which alone may talk to the ring.
struct UringEngine::Mailbox {
  struct Post {
    std::span<std::byte> memory;
    bool is_registration;
    std::promise<int64_t> answer;
  };
  Mutex mutex;
  std::vector<std::shared_ptr<Post>> posts SLUICE_GUARDED_BY(mutex);
};

UringEngine::UringEngine(const FileEngineOptions& options)
    : QueuedEngine(options, requests_for(options)),
      mailbox_(std::make_unique<Mailbox>()),
      ring_(std::make_unique<Ring>(2 * requests_for(options))) {
  auto is_up = std::make_shared<std::promise<void>>();
  std::future<void> up = is_up->get_future();
  thread_ = std::jthread([this, is_up] {
    become_engine_thread("sluice-uring");
    try {
      ring_->set_up();  // in this thread: the kernel lets only the ring's maker use it
    } catch (const Error&) {
      is_up->set_exception(std::current_exception());
      return;
    }
    is_up->set_value();
    run();
  });
  up.get();
}

UringEngine::~UringEngine() {
  begin_stop();
  thread_.join();
}

void UringEngine::run() {
  while (!is_drained()) {
    may_sleep_ = true;
    serve_mailbox();
    while (std::optional<Request> request = try_next()) ring_->prepare(std::move(*request));
    const bool has_delivered = deliver_finished() > 0;  // a completion may have brought more work
    ring_->submit(/*waits=*/!has_delivered && !is_drained());
    may_sleep_ = false;
    ring_->reap([this](Request& request, int result) { return settle(request, result); });
  }
}

void UringEngine::wake() {
  if (std::this_thread::get_id() == thread_.get_id()) return;  // it looks again after completions
  if (may_sleep_.exchange(false)) ring_->wake();
}

void UringEngine::serve_mailbox() {
  std::vector<std::shared_ptr<Mailbox::Post>> posts;
  {
    const MutexLock lock(mailbox_->mutex);
    posts.swap(mailbox_->posts);
  }
  for (const std::shared_ptr<Mailbox::Post>& post : posts) {
    const int64_t bytes = post->is_registration ? ring_->register_memory(post->memory)
                                                : ring_->unregister_memory(post->memory);
    registered_bytes_ += post->is_registration ? bytes : -bytes;
    post->answer.set_value(bytes);
  }
}

int64_t UringEngine::post_and_wait(std::span<std::byte> memory, bool is_registration) {
  SLUICE_ASSERT(!is_in_completion(), "a completion must not wait for the engine");
  auto post = std::make_shared<Mailbox::Post>();
  post->memory = memory;
  post->is_registration = is_registration;
  std::future<int64_t> answer = post->answer.get_future();
  {
    const MutexLock lock(mailbox_->mutex);
    mailbox_->posts.push_back(post);
  }
  wake();
  return answer.get();
}

int64_t UringEngine::register_memory(std::span<std::byte> memory) {
  return memory.empty() ? 0 : post_and_wait(memory, true);
}

void UringEngine::unregister_memory(std::span<std::byte> memory) {
  if (!memory.empty()) post_and_wait(memory, false);
}

std::string UringEngine::describe() const {
  std::string text = "io_uring, " + describe_sizes();
  if (registered_bytes_ > 0)
    text += fmt::format(", {} registered", format_bytes(registered_bytes_));
  return text;
}

}  // namespace sluice::io
