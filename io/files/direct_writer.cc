#include "io/files/direct_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/files/checksum.h"
#include "src/base/system_error.h"

namespace sluice::io {

namespace {
constexpr int64_t kBufferBytes = 8 << 20;  // large enough that one request keeps the disk busy
constexpr size_t kSlots = 4;
constexpr size_t kWriteThreads = 2;  // one request is prepared while the other is on its way
}  // namespace

DirectWriter::DirectWriter(std::filesystem::path path, int64_t expected_bytes, Checksum checksum)
    : path_(std::move(path)), has_checksum_(checksum == Checksum::kCrc32c), slots_(kSlots) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  fd_.reset(::open(path_.c_str(), kFlags | O_DIRECT, 0644));
  if (!fd_ && errno == EINVAL) {
    is_direct_ = false;
    fd_.reset(::open(path_.c_str(), kFlags, 0644));
  }
  if (!fd_) fail("creating it", errno);
  reserve(expected_bytes);
  const int64_t buffer = std::clamp<int64_t>(round_up(expected_bytes, AlignedMemory::kAlignment),
                                             AlignedMemory::kAlignment, kBufferBytes);
  for (Slot& slot : slots_) slot.memory = AlignedMemory(buffer);
  try {
    for (size_t i = 0; i < kWriteThreads; ++i) threads_.emplace_back([this] { write_slots(); });
  } catch (...) {
    stop();
    throw;
  }
}

DirectWriter::~DirectWriter() { stop(); }

void DirectWriter::stop() noexcept {
  const MutexLock lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
}

void DirectWriter::fail(const char* action, int error) const {
  const Error found = system_error(error, fmt::format("{}: {}", path_.string(), action));
  const bool is_space = error == ENOSPC || error == EDQUOT;
  throw Error(
      found.kind(), found.text(),
      is_space ? "free space on that disk, or choose a destination on another" : found.mend());
}

// Space that is there from the start is written faster, and too little of it is known before the
// first byte.
void DirectWriter::reserve(int64_t expected_bytes) {
  if (expected_bytes <= 0) return;
  int problem = 0;
  do {
    problem = ::fallocate(fd_.get(), 0, 0, expected_bytes) == 0 ? 0 : errno;
  } while (problem == EINTR);
  if (problem == ENOSPC || problem == EDQUOT || problem == EFBIG) fail("reserving space", problem);
}

std::span<std::byte> DirectWriter::space() {
  MutexLock lock(mutex_);
  Slot& slot = slots_[submitted_ % slots_.size()];
  changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return !slot.is_full || error_; });
  if (error_) std::rethrow_exception(error_);
  return slot.memory.span().subspan(filled_);
}

DirectWriter::Slot& DirectWriter::current_slot() {
  const MutexLock lock(mutex_);
  return slots_[submitted_ % slots_.size()];
}

void DirectWriter::advance(size_t bytes) {
  const Slot& slot = current_slot();
  SLUICE_ASSERT(bytes <= slot.memory.size() - filled_,
                "the caller fills at most what space() gave");
  if (has_checksum_) checksum_ = crc32c(slot.memory.span().subspan(filled_, bytes), checksum_);
  filled_ += bytes;
  bytes_ += static_cast<int64_t>(bytes);
  if (filled_ == slot.memory.size()) submit();
}

void DirectWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> to = space();
    const size_t count = std::min(to.size(), bytes.size());
    std::memcpy(to.data(), bytes.data(), count);
    advance(count);
    bytes = bytes.subspan(count);
  }
}

void DirectWriter::append_zeros(int64_t bytes) {
  while (bytes > 0) {
    const std::span<std::byte> to = space();
    const size_t count = std::min(to.size(), static_cast<size_t>(bytes));
    std::memset(to.data(), 0, count);
    advance(count);
    bytes -= static_cast<int64_t>(count);
  }
}

void DirectWriter::submit() {
  const MutexLock lock(mutex_);
  Slot& slot = slots_[submitted_ % slots_.size()];
  slot.offset = bytes_ - static_cast<int64_t>(filled_);
  slot.bytes =
      static_cast<size_t>(round_up(static_cast<int64_t>(filled_), AlignedMemory::kAlignment));
  slot.is_full = true;
  ++submitted_;
  filled_ = 0;
  changed_.notify_all();
}

void DirectWriter::finish() {
  if (filled_ > 0) {
    // The last block is written whole and cut off afterwards.
    const std::span<std::byte> rest = space();
    const size_t padding =
        static_cast<size_t>(round_up(bytes_, AlignedMemory::kAlignment) - bytes_);
    std::memset(rest.data(), 0, std::min(padding, rest.size()));
    submit();
  }
  wait_all();
  if (::ftruncate(fd_.get(), bytes_) != 0) fail("setting its size", errno);
  if (::fsync(fd_.get()) != 0) fail("waiting for the disk", errno);
}

void DirectWriter::wait_all() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) {
    return error_ || std::none_of(slots_.begin(), slots_.end(),
                                  [](const Slot& slot) { return slot.is_full; });
  });
  if (error_) std::rethrow_exception(error_);
}

void DirectWriter::write_slots() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) {
      return is_stopping_ || error_ || claimed_ < submitted_;
    });
    if (is_stopping_ || error_) return;
    Slot& slot = slots_[claimed_ % slots_.size()];
    ++claimed_;
    lock.unlock();
    std::exception_ptr error;
    try {
      write(slot);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot.is_full = false;
    if (error && !error_) error_ = error;
    changed_.notify_all();
  }
}

void DirectWriter::write(const Slot& slot) {
  size_t done = 0;
  while (done < slot.bytes) {
    const bool was_direct = is_direct_;
    const ssize_t put = ::pwrite(fd_.get(), slot.memory.data() + done, slot.bytes - done,
                                 slot.offset + static_cast<int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && was_direct) {
      ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) & ~O_DIRECT);
      is_direct_ = false;
      continue;
    }
    if (put <= 0) fail("writing", put < 0 ? errno : EIO);
    done += static_cast<size_t>(put);
  }
}

}  // namespace sluice::io
