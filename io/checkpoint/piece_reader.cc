#include "io/checkpoint/piece_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/files/owned_fd.h"
#include "src/base/system_error.h"

namespace sluice::io {

namespace {

constexpr size_t kReadThreads = 3;
constexpr size_t kSlots = 6;  // 48 MiB: reading goes on while the consumer is held up by a write

// One thread's open file; changes files as the pieces do.
class FileCursor {
 public:
  explicit FileCursor(const std::vector<std::filesystem::path>& files) : files_(files) {}

  // The piece's bytes, inside `memory`.
  std::span<const std::byte> read(const Piece& piece, const AlignedMemory& memory) {
    open(piece.file_index);
    const int64_t begin = round_down(piece.offset, AlignedMemory::kAlignment);
    const int64_t skipped = piece.offset - begin;
    const int64_t window = round_up(skipped + piece.bytes, AlignedMemory::kAlignment);
    int64_t done = 0;
    while (done < skipped + piece.bytes) {
      const ssize_t got = ::pread(fd_.get(), memory.data() + done,
                                  static_cast<size_t>(window - done), begin + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EINVAL && is_direct_) {
        leave_direct();
        continue;
      }
      if (got < 0) throw system_error(errno, where(piece));
      if (got == 0) fail(piece, "the file ends before it");
      done += got;
      // A direct read that stops short of a block is the end of the file; going on from there would
      // not be aligned.
      if (is_direct_ && done % AlignedMemory::kAlignment != 0 && done < skipped + piece.bytes)
        fail(piece, "the file ends before it");
    }
    if (!is_direct_) ::posix_fadvise(fd_.get(), begin, window, POSIX_FADV_DONTNEED);
    return memory.span().subspan(static_cast<size_t>(skipped), static_cast<size_t>(piece.bytes));
  }

 private:
  void open(int32_t file_index) {
    if (fd_ && file_index == file_index_) return;
    const char* path = files_[static_cast<size_t>(file_index)].c_str();
    is_direct_ = true;
    fd_.reset(::open(path, O_RDONLY | O_CLOEXEC | O_DIRECT));
    if (!fd_ && errno == EINVAL) {
      is_direct_ = false;
      fd_.reset(::open(path, O_RDONLY | O_CLOEXEC));
    }
    if (!fd_) throw system_error(errno, path);
    file_index_ = file_index;
  }

  void leave_direct() {
    is_direct_ = false;
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT);
  }

  std::string where(const Piece& piece) const {
    return fmt::format("{}: reading {} bytes at offset {}",
                       files_[static_cast<size_t>(piece.file_index)].string(), piece.bytes,
                       piece.offset);
  }
  [[noreturn]] void fail(const Piece& piece, const char* problem) const {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", where(piece), problem));
  }

  const std::vector<std::filesystem::path>& files_;
  OwnedFd fd_;
  int32_t file_index_ = -1;
  bool is_direct_ = true;
};

}  // namespace

void append_pieces(std::vector<Piece>& pieces, int32_t file_index, int64_t offset, int64_t bytes) {
  for (int64_t done = 0; done < bytes; done += kPieceBytes)
    pieces.push_back({file_index, offset + done, std::min(kPieceBytes, bytes - done)});
}

PieceReader::PieceReader(std::vector<std::filesystem::path> files, std::vector<Piece> pieces,
                         Maker make)
    : files_(std::move(files)),
      pieces_(std::move(pieces)),
      make_(std::move(make)),
      slots_(std::min(kSlots, pieces_.size())) {
  // A piece may start and end anywhere in a block: one block more on each side.
  for (Slot& slot : slots_)
    slot.memory = AlignedMemory(kPieceBytes + 2 * AlignedMemory::kAlignment);
  try {
    for (size_t i = 0; i < std::min(kReadThreads, slots_.size()); ++i)
      threads_.emplace_back([this] { read_pieces(); });
  } catch (...) {
    stop();
    throw;
  }
}

PieceReader::~PieceReader() { stop(); }

void PieceReader::stop() {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
}

std::span<const std::byte> PieceReader::next() {
  MutexLock lock(mutex_);
  SLUICE_ASSERT(consumed_ < pieces_.size(), "as many calls as pieces");
  if (consumed_ > 0) slots_[(consumed_ - 1) % slots_.size()].is_ready = false;
  Slot& slot = slots_[consumed_ % slots_.size()];
  ++consumed_;  // frees the previous piece's slot
  changed_.notify_all();
  changed_.wait(lock, [&] { return slot.is_ready; });
  if (slot.error) std::rethrow_exception(slot.error);
  return slot.bytes;
}

void PieceReader::read_pieces() {
  FileCursor cursor(files_);
  MutexLock lock(mutex_);
  while (true) {
    // The slot of a piece is free once the piece that had it before is no longer the consumer's
    // current one.
    changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) {
      return is_stopping_ || claimed_ == pieces_.size() ||
             claimed_ + 1 < consumed_ + slots_.size() || claimed_ < slots_.size();
    });
    if (is_stopping_ || claimed_ == pieces_.size()) return;
    const Piece& piece = pieces_[claimed_];
    Slot& slot = slots_[claimed_ % slots_.size()];
    ++claimed_;
    lock.unlock();
    std::span<const std::byte> bytes;
    std::exception_ptr error;
    try {
      if (make_) {
        const std::span<std::byte> to = slot.memory.span().first(static_cast<size_t>(piece.bytes));
        make_(piece, to);
        bytes = to;
      } else {
        bytes = cursor.read(piece, slot.memory);
      }
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot.bytes = bytes;
    slot.error = error;
    slot.is_ready = true;
    changed_.notify_all();
  }
}

}  // namespace sluice::io
