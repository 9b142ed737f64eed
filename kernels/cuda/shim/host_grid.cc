#include "kernels/cuda/shim/host_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/shim/fiber.h"
#include "kernels/cuda/shim/host_matrix.h"
#include "src/base/error.h"

namespace sluice::cuda::host {

namespace {
constexpr int kMostThreads = 1024;
constexpr int kPoison = 0xff;  // NaN in every float type, -1 in integers

struct Copy {
  void* shared;
  const void* global;  // null: zeros
};

using WarpOperation = void (*)(Operands&);

enum class State : uint8_t { kReady, kAtWarp, kAtBarrier, kDone };

struct FiberThread : Thread {
  Fiber* fiber = nullptr;
  State state = State::kReady;
  Place place;
  std::vector<std::vector<Copy>> committed;
  std::vector<Copy> issued;
};

struct WarpState {
  Operands operands;
  WarpOperation operation = nullptr;
  Place place;
  int arrived = 0;
};

std::string text_of(const Place& place) {
  const std::string_view file = place.file;
  const size_t slash = file.find_last_of('/');
  return fmt::format("{}:{}", file.substr(slash == std::string_view::npos ? 0 : slash + 1),
                     place.line);
}

// One block at a time and its threads; used for many blocks of a grid, one after the other.
class BlockRun {
 public:
  // `number` of those of a grid, which have stacks of their own.
  BlockRun(const char* name, const LaunchShape& shape, uint64_t seed, int number,
           const std::function<void()>& body)
      : name_(name),
        shape_(shape),
        body_(body),
        first_fiber_(number * shape.threads),
        order_(static_cast<size_t>(shape.threads)) {
    threads_.resize(order_.size());
    warps_.resize(order_.size() / kWarp);
    std::iota(order_.begin(), order_.end(), 0);
    if (seed == 1 || seed == 3) std::reverse(order_.begin(), order_.end());
    if (seed >= kFirstRandomOrder) random_.emplace(seed + static_cast<uint64_t>(number));
    is_greedy_ = seed == 2 || seed == 3 || (random_ && seed % 2 == 1);
  }

  void begin(int x, int y, int z);
  // To the end of the block, or until it pauses: false.
  bool go_on();

  void wait_at_barrier(FiberThread& self, Place place);
  void meet(FiberThread& self, WarpOperation operation, Operand operand, Place place);
  // A greedy warp's block lets others of the grid go first.
  void pause(FiberThread& self);
  [[noreturn]] void stop(FiberThread& self, std::string message);

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  void step(FiberThread& thread);
  bool step_all();
  bool step_warps();
  void release_barrier();
  [[noreturn]] void report_deadlock() const;
  [[noreturn]] void raise(const std::string& message) const {
    throw Error(ErrorKind::kInternal, fmt::format("kernel {}, block ({}, {}, {}): {}", name_,
                                                  block_.x, block_.y, block_.z, message));
  }

  const char* name_;
  LaunchShape shape_;
  const std::function<void()>& body_;
  int first_fiber_;
  Block block_{};
  std::unique_ptr<std::byte, Free> shared_;
  std::vector<FiberThread> threads_;
  std::vector<WarpState> warps_;
  std::vector<int> order_;
  std::optional<std::mt19937_64> random_;
  bool is_greedy_ = false;
  bool is_paused_ = false;
  int at_barrier_ = 0;
  int done_ = 0;
  std::string problem_;
};

thread_local FiberThread* current = nullptr;
thread_local BlockRun* current_run = nullptr;

// Stacks are kept for the next grid: mapping a thousand takes longer than most blocks run.
Fiber& fiber_of(int index) {
  static thread_local std::vector<std::unique_ptr<Fiber>> fibers;
  while (static_cast<int>(fibers.size()) <= index) fibers.push_back(std::make_unique<Fiber>());
  return *fibers[static_cast<size_t>(index)];
}

void BlockRun::begin(int x, int y, int z) {
  void* memory = nullptr;
  const auto bytes = static_cast<size_t>(std::max<int64_t>(shape_.shared_bytes, 1));
  if (posix_memalign(&memory, 128, bytes) != 0) raise("no memory to stand for shared memory");
  shared_.reset(static_cast<std::byte*>(memory));
  std::memset(memory, kPoison, bytes);
  block_ = {x, y, z, shape_.grid.x, shape_.grid.y, shape_.threads, shared_.get()};
  at_barrier_ = done_ = 0;
  warps_.assign(warps_.size(), {});
  for (int i = 0; i < shape_.threads; ++i) {
    FiberThread& thread = threads_[static_cast<size_t>(i)];
    thread = FiberThread{{i, &block_}, &fiber_of(first_fiber_ + i), State::kReady, {}, {}, {}};
    thread.fiber->start(
        [](void* run) {
          static_cast<BlockRun*>(run)->body_();
          FiberThread& self = *current;
          if (!self.issued.empty() || !self.committed.empty())
            current_run->stop(self, "it ends without waiting for its asynchronous copies");
          self.state = State::kDone;
          ++current_run->done_;
          self.fiber->leave(Fiber::Leave::kForGood);
        },
        this);
  }
}

bool BlockRun::go_on() {
  current_run = this;
  is_paused_ = false;
  while (done_ < shape_.threads) {
    if (random_) std::shuffle(order_.begin(), order_.end(), *random_);
    const bool has_moved = is_greedy_ ? step_warps() : step_all();
    if (is_paused_) return false;
    if (!has_moved) report_deadlock();
  }
  return true;
}

// Each thread that can goes on, in turn.
bool BlockRun::step_all() {
  bool has_moved = false;
  for (const int index : order_) {
    FiberThread& thread = threads_[static_cast<size_t>(index)];
    if (thread.state != State::kReady) continue;
    has_moved = true;
    step(thread);
  }
  return has_moved;
}

// The warp of the first thread that can goes on until none of it can: past a barrier too, where it
// was the last to come.
bool BlockRun::step_warps() {
  const auto first = std::find_if(order_.begin(), order_.end(), [&](int index) {
    return threads_[static_cast<size_t>(index)].state == State::kReady;
  });
  if (first == order_.end()) return false;
  const int begin = *first / kWarp * kWarp;
  const bool is_falling = *first != begin;
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (int i = 0; i < kWarp; ++i) {
      const int index = is_falling ? begin + kWarp - 1 - i : begin + i;
      FiberThread& thread = threads_[static_cast<size_t>(index)];
      if (thread.state != State::kReady) continue;
      has_moved = true;
      step(thread);
      if (is_paused_) return true;
    }
  }
  return true;
}

void BlockRun::step(FiberThread& thread) {
  current = &thread;
  thread.fiber->enter();
  current = nullptr;
  if (!problem_.empty()) raise(problem_);
}

void BlockRun::stop(FiberThread& self, std::string message) {
  problem_ = fmt::format("thread {}: {}", self.index, message);
  std::string().swap(message);                        // nothing unwinds this stack
  for (;;) self.fiber->leave(Fiber::Leave::kForNow);  // never entered again
}

void BlockRun::pause(FiberThread& self) {
  if (!is_greedy_) return;
  is_paused_ = true;
  self.fiber->leave(Fiber::Leave::kForNow);
}

void BlockRun::release_barrier() {
  at_barrier_ = 0;
  for (FiberThread& thread : threads_) thread.state = State::kReady;
}

void BlockRun::wait_at_barrier(FiberThread& self, Place place) {
  self.place = place;
  self.state = State::kAtBarrier;
  if (++at_barrier_ == shape_.threads) return release_barrier();
  self.fiber->leave(Fiber::Leave::kForNow);
}

void BlockRun::meet(FiberThread& self, WarpOperation operation, Operand operand, Place place) {
  WarpState& warp = warps_[static_cast<size_t>(self.index / kWarp)];
  if (warp.arrived == 0) {
    warp.operation = operation;
    warp.place = place;
  } else if (warp.operation != operation || warp.place.line != place.line) {
    std::string message =
        fmt::format("it is at {}, others of its warp at {}", text_of(place), text_of(warp.place));
    stop(self, std::move(message));
  }
  warp.operands[static_cast<size_t>(self.index % kWarp)] = operand;
  self.place = place;
  self.state = State::kAtWarp;
  if (++warp.arrived < kWarp) return self.fiber->leave(Fiber::Leave::kForNow);
  operation(warp.operands);
  warp.arrived = 0;
  const int first = self.index / kWarp * kWarp;
  for (int lane = 0; lane < kWarp; ++lane)
    threads_[static_cast<size_t>(first + lane)].state = State::kReady;
}

void BlockRun::report_deadlock() const {
  std::string message = "no thread can go on:";
  State last = State::kReady;
  int last_line = -1;
  for (const FiberThread& thread : threads_) {
    if (thread.state == last && thread.place.line == last_line) continue;
    last = thread.state;
    last_line = thread.place.line;
    message += thread.state == State::kDone
                   ? fmt::format(" thread {} has ended;", thread.index)
                   : fmt::format(" thread {} waits {} at {};", thread.index,
                                 thread.state == State::kAtWarp ? "for its warp" : "for its block",
                                 text_of(thread.place));
  }
  message.pop_back();
  raise(message);
}

// The blocks of a grid in the order of its seed; what has paused goes on when enough others have.
class GridRun {
 public:
  GridRun(const char* name, const LaunchShape& shape, uint64_t seed,
          const std::function<void()>& body)
      : name_(name), shape_(shape), seed_(seed), body_(body) {}

  void run() {
    const Grid& grid = shape_.grid;
    for (const int64_t block : order()) {
      BlockRun& run = idle_run();
      run.begin(static_cast<int>(block % grid.x), static_cast<int>(block / grid.x % grid.y),
                static_cast<int>(block / grid.x / grid.y));
      go_on(run);
      if (paused_.size() == kMostPaused) go_on_with_paused();
    }
    while (!paused_.empty()) go_on_with_paused();
  }

 private:
  static constexpr size_t kMostPaused = 8;  // stacks of so many blocks

  std::vector<int64_t> order() const {
    std::vector<int64_t> blocks(
        static_cast<size_t>(int64_t{shape_.grid.x} * shape_.grid.y * shape_.grid.z));
    std::iota(blocks.begin(), blocks.end(), 0);
    if (seed_ % 2 == 1) std::reverse(blocks.begin(), blocks.end());
    std::mt19937_64 random(seed_);
    if (seed_ >= kFirstRandomOrder) std::shuffle(blocks.begin(), blocks.end(), random);
    return blocks;
  }
  BlockRun& idle_run() {
    if (idle_.empty()) {
      runs_.push_back(
          std::make_unique<BlockRun>(name_, shape_, seed_, static_cast<int>(runs_.size()), body_));
      return *runs_.back();
    }
    BlockRun& run = *idle_.back();
    idle_.pop_back();
    return run;
  }
  void go_on(BlockRun& run) { (run.go_on() ? idle_ : paused_).push_back(&run); }
  // The one that paused last: it has the most to expect of the others.
  void go_on_with_paused() {
    BlockRun& run = *paused_.back();
    paused_.pop_back();
    go_on(run);
  }

  const char* name_;
  LaunchShape shape_;
  uint64_t seed_;
  const std::function<void()>& body_;
  std::vector<std::unique_ptr<BlockRun>> runs_;
  std::vector<BlockRun*> idle_;
  std::vector<BlockRun*> paused_;
};

void meet(WarpOperation operation, const void* in, void* out, Place place) {
  current_run->meet(*current, operation, {in, out}, place);
}

struct ShuffleIn {
  uint32_t value;
  int lane;
};

void finish_copies(FiberThread& self, size_t groups_left) {
  while (self.committed.size() > groups_left) {
    for (const Copy& copy : self.committed.front())
      if (copy.global)
        std::memcpy(copy.shared, copy.global, 16);
      else
        std::memset(copy.shared, 0, 16);
    self.committed.erase(self.committed.begin());
  }
}

bool is_aligned(const void* at, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}
}  // namespace

void run_grid(const char* name, const LaunchShape& shape, uint64_t seed,
              const std::function<void()>& body) {
  const Grid& grid = shape.grid;
  const auto refuse = [&](const std::string& message) {
    throw Error(ErrorKind::kInternal, fmt::format("kernel {}: {}", name, message));
  };
  if (shape.threads < kWarp || shape.threads > kMostThreads || shape.threads % kWarp != 0)
    refuse(fmt::format("a block of {} threads; whole warps up to {} can run", shape.threads,
                       kMostThreads));
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535)
    refuse(fmt::format("a grid of {} x {} x {} blocks", grid.x, grid.y, grid.z));
  SLUICE_ASSERT(!current, "a kernel launches no kernel");
  GridRun(name, shape, seed, body).run();
}

uint32_t count_up(uint32_t* counter) {
  const uint32_t before = (*counter)++;
  current_run->pause(*current);
  return before;
}

const Thread& thread() { return *current; }

void block_barrier(Place place) { current_run->wait_at_barrier(*current, place); }

void warp_sync(Place place) {
  meet([](Operands&) {}, nullptr, nullptr, place);
}

uint32_t shuffle(uint32_t value, int lane, Place place) {
  const ShuffleIn in{value, lane};
  uint32_t out = 0;
  meet(
      [](Operands& operands) {
        for (Operand& operand : operands) {
          const auto from = static_cast<size_t>(static_cast<const ShuffleIn*>(operand.in)->lane);
          *static_cast<uint32_t*>(operand.out) =
              static_cast<const ShuffleIn*>(operands[from % kWarp].in)->value;
        }
      },
      &in, &out, place);
  return out;
}

uint32_t ballot(bool value, Place place) {
  uint32_t out = 0;
  meet(
      [](Operands& operands) {
        uint32_t votes = 0;
        for (size_t lane = 0; lane < kWarp; ++lane)
          votes |= uint32_t{*static_cast<const bool*>(operands[lane].in)} << lane;
        for (Operand& operand : operands) *static_cast<uint32_t*>(operand.out) = votes;
      },
      &value, &out, place);
  return out;
}

void copy_async(void* shared, const void* global, bool is_valid) {
  if (!is_aligned(shared, 16) || !is_aligned(global, 16))
    current_run->stop(*current, "an asynchronous copy that is not aligned to 16 bytes");
  if (!is_on_device(global, 16))
    current_run->stop(*current, "an asynchronous copy from outside the device's memory");
  std::memset(shared, kPoison, 16);
  current->issued.push_back({shared, is_valid ? global : nullptr});
}

void copy_async_commit() {
  current->committed.push_back(std::move(current->issued));
  current->issued.clear();
}

void copy_async_wait(int groups_left) { finish_copies(*current, static_cast<size_t>(groups_left)); }

void load_matrix_x4(uint32_t (&out)[4], const void* row, bool is_transposed, Place place) {
  if (!is_aligned(row, 16)) current_run->stop(*current, "a matrix row not aligned to 16 bytes");
  if (is_transposed)
    meet(load_transposed_matrices, row, out, place);
  else
    meet(load_matrices, row, out, place);
}

void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], DType type,
                 Place place) {
  const Fragments<float> part{a, b, d};
  meet(type == DType::kF16 ? multiply_f16 : multiply_bf16, &part, nullptr, place);
}

void mma_16x8x32_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
  const Fragments<int> part{a, b, d};
  meet(multiply_s8, &part, nullptr, place);
}

uint32_t fma_half2(uint32_t a, uint32_t b, uint32_t c) { return fma_pair(a, b, c, DType::kF16); }

uint32_t fma_bf16_pair(uint32_t a, uint32_t b, uint32_t c) {
  return fma_pair(a, b, c, DType::kBF16);
}

}  // namespace sluice::cuda::host
