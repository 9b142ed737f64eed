#include "io/async/faulty_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/system_error.h"

namespace sluice::io {

FaultyEngine::FaultyEngine(std::unique_ptr<FileEngine> inner, FaultPlan plan)
    : plan_(plan), inner_(std::move(inner)) {}

FaultyEngine::~FaultyEngine() = default;

FileId FaultyEngine::open_for_read(const std::string& path) { return inner_->open_for_read(path); }
FileId FaultyEngine::adopt(OwnedFd fd, std::string name, bool is_direct) {
  return inner_->adopt(std::move(fd), std::move(name), is_direct);
}
void FaultyEngine::close(FileId file) { inner_->close(file); }
bool FaultyEngine::is_direct(FileId file) const { return inner_->is_direct(file); }
int64_t FaultyEngine::size(FileId file) const { return inner_->size(file); }
int64_t FaultyEngine::register_memory(std::span<std::byte> memory) {
  return inner_->register_memory(memory);
}
void FaultyEngine::unregister_memory(std::span<std::byte> memory) {
  inner_->unregister_memory(memory);
}
void FaultyEngine::cancel_pending() { inner_->cancel_pending(); }
EngineCounters FaultyEngine::counters() const { return inner_->counters(); }
std::string FaultyEngine::describe() const { return inner_->describe() + ", with planned faults"; }

int64_t FaultyEngine::reads() const {
  const MutexLock lock(mutex_);
  return reads_;
}

int64_t FaultyEngine::writes() const {
  const MutexLock lock(mutex_);
  return writes_;
}

void FaultyEngine::read(std::span<const Extent> extents, Completion done) {
  int64_t number = 0;
  {
    const MutexLock lock(mutex_);
    number = reads_++;
  }
  if (number == plan_.failing_read) {
    forward(Direction::kRead, {}, std::move(done),
            system_error(plan_.read_errno, fmt::format("planned fault in read {}", number)));
  } else if (number == plan_.shortened_read) {
    int64_t left = plan_.shortened_bytes;
    std::vector<Extent> first(extents.begin(), extents.end());
    for (Extent& extent : first) {
      extent.bytes = std::min(extent.bytes, round_down(left, kDirectAlignment));
      extent.required_bytes = std::min(extent.bytes, std::max<int64_t>(extent.required_bytes, 0));
      left -= extent.bytes;
    }
    forward(Direction::kRead, first, std::move(done),
            Error(ErrorKind::kFile,
                  fmt::format("planned fault in read {}: the file ends after {} bytes of it",
                              number, plan_.shortened_bytes)));
  } else {
    forward(Direction::kRead, extents, std::move(done), std::nullopt);
  }
}

void FaultyEngine::write(std::span<const Extent> extents, Completion done) {
  int64_t number = 0;
  {
    const MutexLock lock(mutex_);
    number = writes_++;
  }
  if (number == plan_.failing_write) {
    forward(Direction::kWrite, {}, std::move(done),
            system_error(plan_.write_errno, fmt::format("planned fault in write {}", number)));
  } else {
    forward(Direction::kWrite, extents, std::move(done), std::nullopt);
  }
}

void FaultyEngine::forward(Direction direction, std::span<const Extent> extents, Completion done,
                           const std::optional<Error>& fault) {
  auto wrapped = [this, fault, done = std::move(done)](std::exception_ptr error) {
    if (!error && fault) error = std::make_exception_ptr(*fault);
    finished(done, std::move(error));
  };
  {
    const MutexLock lock(mutex_);
    ++under_way_;
  }
  try {
    direction == Direction::kRead ? inner_->read(extents, std::move(wrapped))
                                  : inner_->write(extents, std::move(wrapped));
  } catch (...) {  // refused: there will be no completion
    const MutexLock lock(mutex_);
    --under_way_;
    throw;
  }
}

void FaultyEngine::finished(Completion done, std::exception_ptr error) {
  std::vector<Held> due;
  {
    const MutexLock lock(mutex_);
    --under_way_;
    held_.push_back({std::move(done), std::move(error)});
    const bool is_full = static_cast<int64_t>(held_.size()) >= plan_.held_completions;
    if (is_full || under_way_ == 0) due.swap(held_);
  }
  for (auto held = due.rbegin(); held != due.rend(); ++held) held->done(std::move(held->error));
}

}  // namespace sluice::io
