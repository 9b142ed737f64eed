#pragma once
// The part of the CUDA runtime that the engine needs, as plain functions with one owner for every
// handle: device memory, pinned host memory, streams, events, copies (driver_cuda.cu). For tests
// the same source runs on a runtime of our own (shim/host_runtime.h), where streams are queues
// whose work runs late and in any order that events allow, so that a missing wait shows. Thread
// safe. Errors: kDevice with CUDA's own text; kResource when memory is short. After an error that
// is caught, calls go on as if what was refused had not been asked for.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/multiprocessors.h"
#include "kernels/cuda/types.h"

namespace sluice::cuda {

/// What a GPU says of itself.
struct DeviceProperties {
  std::string name;
  int compute_capability = 0;  ///< 75, 80, 86, 90 ...
  Multiprocessors multiprocessors;
  int64_t memory_bytes = 0;
  int64_t shared_bytes_per_block = 0;  ///< the most a kernel may ask for
  bool has_bf16 = false;               ///< matrix products of bf16
  bool has_fp8 = false;                ///< matrix products of e4m3
  std::string pci_bus_id;              ///< "0000:3b:00.0"; empty where there is no bus
};

/// Nothing when there is no GPU or no driver; never throws.
std::vector<DeviceProperties> devices() noexcept;
/// Memory of GPU `index` that nobody has. Errors: kDevice.
int64_t free_device_bytes(int index);
/// The calling thread's device from now on.
void use_device(int index);

/// The calling thread's device while it lives: whoever makes handles or memory, or launches, begins
/// with one. Errors: kDevice.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;  ///< -1: the same
};

/// Device memory; freed by its end. Aligned to 256 bytes.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(int64_t bytes);
  std::byte* data() const noexcept { return memory_.get(); }
  int64_t bytes() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t bytes_ = 0;
};

/// Tells the driver of host memory that copies go from and to (page-locked until its end).
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(void* memory, int64_t bytes);

 private:
  struct Unpin {
    void operator()(void* memory) const noexcept;
  };
  std::unique_ptr<void, Unpin> memory_;
};

/// A stream with one owner.
class OwnedStream {
 public:
  OwnedStream();
  Stream get() const noexcept { return stream_.get(); }

 private:
  struct Destroy {
    void operator()(Stream stream) const noexcept;
  };
  std::unique_ptr<StreamTag, Destroy> stream_;
};

struct EventTag;

/// How a thread waits for an event.
enum class Waiting : uint8_t {
  kSpins,  ///< on its core: soonest back
  kSleeps  ///< its core is others' meanwhile; some tens of microseconds later
};

/// A point in a stream's work.
class Event {
 public:
  explicit Event(Waiting waiting = Waiting::kSpins);
  /// All that `stream` has been given so far.
  void record(Stream stream);
  /// `stream` goes on only after the last record(); at once when there was none.
  void make_wait(Stream stream) const;
  /// The calling thread does.
  void synchronize() const;

 private:
  struct Destroy {
    void operator()(EventTag* event) const noexcept;
  };
  std::unique_ptr<EventTag, Destroy> event_;
};

struct GraphTag;

/// Work of a stream, recorded once, to be run as a whole again and again: with the addresses and
/// sizes it was recorded with, and what is in memory when it runs.
class Graph {
 public:
  /// Until end(), what the calling thread gives `stream` is recorded instead of run; it must not
  /// wait for the stream or an event.
  static void begin(Stream stream);
  /// Errors: kDevice, where the driver can't make a graph of it.
  static Graph end(Stream stream);
  /// Instead of end(): forgets what was recorded.
  static void abandon(Stream stream) noexcept;

  void launch(Stream stream) const;

 private:
  struct Destroy {
    void operator()(GraphTag* graph) const noexcept;
  };
  std::unique_ptr<GraphTag, Destroy> graph_;
};

/// In `stream`'s order; host memory must stay until then (pinned, or the call may block).
void copy_to_device(void* device, const void* host, int64_t bytes, Stream stream);
void copy_to_host(void* host, const void* device, int64_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, int64_t bytes, Stream stream);
struct Copy {
  void* to;
  const void* from;
  int64_t bytes;
};
/// Whether GPU `index` takes many copies in one call.
bool copies_in_batches(int index) noexcept;
/// All of `copies`, each of some bytes between the device and pinned host memory, in `stream`'s
/// order, but among themselves in any. Not the default stream. Errors: kDevice, also where the
/// driver is too old for it: then none was made.
void copy_batch(std::span<const Copy> copies, Stream stream);
/// `rows` rows of row_bytes, from anywhere to anywhere.
void copy_rows(void* to, int64_t to_stride, const void* from, int64_t from_stride,
               int64_t row_bytes, int64_t rows, Stream stream);
void fill_zero(void* device, int64_t bytes, Stream stream);
/// Waits for all of a stream's work; what went wrong in it is thrown.
void synchronize(Stream stream);

}  // namespace sluice::cuda
