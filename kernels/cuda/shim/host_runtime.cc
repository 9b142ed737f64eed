#include "kernels/cuda/shim/host_runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/shim/host_driver.h"
#include "kernels/cuda/shim/host_grid.h"
#include "kernels/cuda/shim/host_memory.h"
#include "src/base/error.h"
#include "src/base/mutex.h"

struct CUstream_st {
  int device = 0;
};
struct CUevent_st {
  int device = 0;
  int64_t recorded = 0;  // how many times
  int64_t reached = 0;
  bool is_blocking = false;
};

namespace {
using sluice::Error;
using sluice::ErrorKind;
using sluice::Mutex;
using sluice::MutexLock;
using sluice::cuda::host::Allocation;
using sluice::cuda::host::kMemoryBytes;
using sluice::cuda::host::kMostDevices;
using sluice::cuda::host::Pinned;

// Work in one stream: something to do, or an event to wait for or to reach.
struct Work {
  std::function<void()> run;
  const CUevent_st* wait_for = nullptr;
  int64_t wait_count = 0;
  bool is_event = false;  // takes no time
  int device = 0;         // whose memory it may touch; -1: every GPU's
  // Host memory that it reads or writes.
  const void* host = nullptr;
  int64_t host_bytes = 0;
};

struct Recording {
  std::vector<Work> works;
  bool is_invalid = false;  // something was asked meanwhile that can't be recorded
  std::thread::id thread;   // that began it
};
}  // namespace

struct CUgraph_st {
  std::vector<Work> works;
};
struct CUgraphExec_st {
  std::vector<Work> works;
};

namespace {
// CUDA programming guide, table of compute capabilities.
struct SharedMemory {
  size_t of_block;  // the most that a kernel may ask for
  size_t of_multiprocessor;
  size_t beside;  // what each block takes besides
};
SharedMemory shared_memory_of(int capability) {
  switch (capability) {
    case 75: return {64 << 10, 64 << 10, 0};
    case 80: return {163 << 10, 164 << 10, 1 << 10};
    case 86:
    case 89:
    case 120: return {99 << 10, 100 << 10, 1 << 10};
    default: return {227 << 10, 228 << 10, 1 << 10};
  }
}

struct Driver {
  Mutex mutex;
  std::map<cudaStream_t, std::deque<Work>> streams SLUICE_GUARDED_BY(mutex);
  std::map<cudaStream_t, Recording> recorded
      SLUICE_GUARDED_BY(mutex);  // of streams that are being recorded
  uint64_t seed SLUICE_GUARDED_BY(mutex) = 0;
  std::mt19937_64 random SLUICE_GUARDED_BY(mutex){0};
  std::exception_ptr error SLUICE_GUARDED_BY(mutex);
  sluice::cuda::host::DeviceAllocations allocations SLUICE_GUARDED_BY(mutex);
  sluice::cuda::host::Registrations pinned SLUICE_GUARDED_BY(mutex);
  int devices SLUICE_GUARDED_BY(mutex) = 1;
  int64_t works SLUICE_GUARDED_BY(mutex) = 0;  // run, without events
  bool is_timed_by_work SLUICE_GUARDED_BY(mutex) = false;
  int major SLUICE_GUARDED_BY(mutex) = 9;
  int minor SLUICE_GUARDED_BY(mutex) = 0;
  int64_t works_until_lost SLUICE_GUARDED_BY(mutex) = INT64_MAX;
  bool is_lost SLUICE_GUARDED_BY(mutex) = false;
  sluice::cuda::host::Refusals refusals SLUICE_GUARDED_BY(mutex);
  sluice::cuda::host::Counts counts SLUICE_GUARDED_BY(mutex);
};

Driver& driver() {
  static Driver the;
  return the;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

// The default stream of a GPU.
cudaStream_t stream_of(cudaStream_t stream) {
  static CUstream_st defaults[kMostDevices];
  if (stream) return stream;
  CUstream_st& own = defaults[current_device];
  own.device = current_device;
  return &own;
}

// As the runtime does: a failure stays until it is asked for, a success takes nothing away.
cudaError_t give(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

bool may_run(const Work& work) {
  return !work.wait_for || work.wait_for->reached >= work.wait_count;
}

// Runs the first work of some stream that may run; false when there is none.
bool run_one(Driver& the) SLUICE_REQUIRES(the.mutex) {
  std::vector<std::deque<Work>*> ready;
  for (auto& [stream, queue] : the.streams)
    if (!queue.empty() && may_run(queue.front())) ready.push_back(&queue);
  if (ready.empty()) return false;
  size_t pick = 0;
  if (the.seed == 1) pick = ready.size() - 1;
  if (the.seed > 1) pick = the.random() % ready.size();
  const Work work = std::move(ready[pick]->front());
  ready[pick]->pop_front();
  if (!work.run || the.error) return true;
  if (!work.is_event && ++the.works > the.works_until_lost) the.is_lost = true;
  if (the.is_lost && !work.is_event) return true;
  if (!work.is_event) the.allocations.open(work.device);
  try {
    work.run();
  } catch (...) {
    the.error = std::current_exception();
  }
  return true;
}

// Runs works while it is wanted and one may run. Device memory has walls again behind them.
void run_while(Driver& the, const std::function<bool()>& is_wanted) SLUICE_REQUIRES(the.mutex) {
  while (is_wanted() && run_one(the)) {
  }
  the.allocations.close();
}

void run_until(Driver& the, const std::function<bool()>& is_reached) SLUICE_REQUIRES(the.mutex) {
  run_while(the, [&] { return !is_reached(); });
  if (!is_reached())
    throw Error(ErrorKind::kInternal, "streams wait for each other: no work may run");
  if (the.error) std::rethrow_exception(std::exchange(the.error, nullptr));
}

void enqueue(cudaStream_t stream, Work work) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  stream = stream_of(stream);
  const auto recording = the.recorded.find(stream);
  (recording != the.recorded.end() ? recording->second.works.emplace_back()
                                   : the.streams[stream].emplace_back()) = std::move(work);
}

// Nothing may wait for a stream that is being recorded: the recording is spoilt.
bool spoils_recording(Driver& the, cudaStream_t stream) SLUICE_REQUIRES(the.mutex) {
  const auto found = the.recorded.find(stream);
  if (found == the.recorded.end()) return false;
  found->second.is_invalid = true;
  return true;
}

// A call that this thread may not make while it records a stream: the recording is spoilt.
bool spoils_own_recording(Driver& the) SLUICE_REQUIRES(the.mutex) {
  bool is_recording = false;
  for (auto& [stream, recording] : the.recorded)
    if (recording.thread == std::this_thread::get_id()) {
      recording.is_invalid = true;
      is_recording = true;
    }
  return is_recording;
}

// One side of a copy: memory of one allocation of a GPU's, or host memory that is page-locked as a
// whole by one registration or not at all. What is not page-locked is recorded in no graph.
struct CopySide {
  const void* at;
  int64_t bytes;
  bool must_be_host = false;
  bool must_be_device = false;
  bool must_be_locked = false;  // page-locked, where it is host memory
};
cudaError_t check_side(Driver& the, const CopySide& side, cudaStream_t stream)
    SLUICE_REQUIRES(the.mutex) {
  if (side.bytes == 0) return cudaSuccess;
  const bool is_device = the.allocations.touches(side.at, side.bytes);
  if (is_device) {
    const bool is_whole = the.allocations.find(side.at, side.bytes) != nullptr;
    return side.must_be_host || !is_whole ? cudaErrorInvalidValue : cudaSuccess;
  }
  if (side.must_be_device) return cudaErrorInvalidValue;
  const Pinned pinned = the.pinned.of(side.at, side.bytes);
  if (pinned == Pinned::kRefused || (pinned == Pinned::kNot && side.must_be_locked))
    return cudaErrorInvalidValue;
  if (pinned == Pinned::kNot && spoils_recording(the, stream))
    return cudaErrorStreamCaptureUnsupported;
  return cudaSuccess;
}

cudaError_t check_copy(const void* to, int64_t to_bytes, const void* from, int64_t from_bytes,
                       cudaMemcpyKind kind, cudaStream_t stream) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (the.is_lost) return cudaErrorIllegalAddress;
  const bool is_up = kind == cudaMemcpyHostToDevice, is_down = kind == cudaMemcpyDeviceToHost;
  const bool is_within = kind == cudaMemcpyDeviceToDevice;
  const cudaError_t status =
      check_side(the, {from, from_bytes, is_up, is_down || is_within}, stream_of(stream));
  if (status != cudaSuccess) return status;
  return check_side(the, {to, to_bytes, is_down, is_up || is_within}, stream_of(stream));
}

// The host memory of a copy, so that nobody gives it back under way.
Work copy_work(const void* to, const void* from, int64_t host_span, std::function<void()> run) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  Work work{std::move(run), nullptr, 0};
  work.device = -1;
  const bool is_from_host = !the.allocations.touches(from, 1);
  work.host = is_from_host ? from : to;
  work.host_bytes = is_from_host || !the.allocations.touches(to, 1) ? host_span : 0;
  return work;
}

void count_copies(int64_t calls, int64_t batched) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.counts.copies += calls;
  the.counts.batched_copies += batched;
}
}  // namespace

namespace sluice::cuda::host {
void set_seed(uint64_t seed) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.seed = seed;
  the.random.seed(seed);
}

void refuse(const Refusals& refusals) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.refusals = refusals;
}

void refuse_graphs(bool refuses) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.refusals.graphs = refuses;
}

int64_t device_bytes_in_use() {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  return the.allocations.bytes_in_use();
}

int64_t pinned_bytes_in_use() {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  return the.pinned.bytes();
}

Counts counts() {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  return the.counts;
}

int64_t graphs_run() { return counts().graphs; }

void time_by_work(bool is_on) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.is_timed_by_work = is_on;
}

void set_capability(int major, int minor) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.major = major;
  the.minor = minor;
}

int capability() {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  return 10 * the.major + the.minor;
}

double timer_seconds() {
  const Driver& the = driver();
  the.mutex.assert_held();  // by run_one
  if (the.is_timed_by_work) return 1e-6 * static_cast<double>(the.works);
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void set_devices(int count) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.devices = count;
  current_device = 0;
}

void lose_device_after(int64_t works) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.is_lost = false;
  the.works_until_lost = works == INT64_MAX ? works : the.works + works;
}

void check_words(const char* name, const void* argument, size_t bytes) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(argument) + at, sizeof word);
    // Where Linux puts programs, heaps, maps and stacks.
    if (word < 0x5500'0000'0000 || word > 0x7fff'ffff'ffff) continue;
    const void* memory = reinterpret_cast<const void*>(word);
    if (const Allocation* of = the.allocations.find(memory, 1)) {
      if (of->device != current_device)
        throw Error(ErrorKind::kInternal,
                    fmt::format("kernel {} of GPU {} is given memory of GPU {}", name,
                                current_device, of->device));
      continue;
    }
    // The end of an allocation is no host memory.
    if (the.allocations.touches(static_cast<const std::byte*>(memory) - 1, 1)) continue;
    if (is_mapped(memory))
      throw Error(ErrorKind::kInternal, fmt::format("kernel {} is given host memory", name));
  }
}

void enqueue_kernel(const char* name, const LaunchShape& shape, Stream stream,
                    std::function<void()> body) {
  const cudaStream_t queue = stream_of(reinterpret_cast<cudaStream_t>(stream));
  if (queue->device != current_device)
    throw Error(ErrorKind::kInternal,
                fmt::format("kernel {}: its stream is GPU {}'s, the thread's device is {}", name,
                            queue->device, current_device));
  const int of = capability();
  const auto most = static_cast<int64_t>(shared_memory_of(of).of_block);
  if (shape.shared_bytes > most)
    throw Error(ErrorKind::kDevice,
                fmt::format("kernel {}: {} bytes of shared memory; compute capability {}.{} has {} "
                            "for a block",
                            name, shape.shared_bytes, of / 10, of % 10, most));
  enqueue_work(stream, [name, shape, body = std::move(body)] {
    Driver& the = driver();
    the.mutex.assert_held();  // by run_one
    ++the.counts.kernels;
    const bool is_drawn = the.seed >= kFirstRandomOrder;
    // Whether warps are greedy is the seed's last bit, and stays.
    const uint64_t drawn = ((the.random() | kFirstRandomOrder) & ~uint64_t{1}) | (the.seed & 1);
    run_grid(name, shape, is_drawn ? drawn : the.seed, body);
  });
}

bool is_on_device(const void* at, int64_t bytes) {
  const Driver& the = driver();
  the.mutex.assert_held();  // by run_one
  return the.allocations.find(at, bytes) != nullptr;
}

void enqueue_work(Stream stream, std::function<void()> work) {
  Work queued{std::move(work), nullptr, 0};
  queued.device = stream_of(reinterpret_cast<cudaStream_t>(stream))->device;
  enqueue(reinterpret_cast<cudaStream_t>(stream), std::move(queued));
}

void enqueue_reading(Stream stream, std::function<void()> reading) {
  enqueue(reinterpret_cast<cudaStream_t>(stream), {std::move(reading), nullptr, 0, true});
}
}  // namespace sluice::cuda::host

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    case cudaErrorHostMemoryAlreadyRegistered: return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered: break;
  }
  return "cudaErrorHostMemoryNotRegistered";
}
const char* cudaGetErrorString(cudaError_t) { return "refused by the host's stand-in"; }

cudaError_t cudaGetDeviceCount(int* count) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  *count = the.devices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (device < 0 || device >= the.devices) return give(cudaErrorInvalidDevice);
  const SharedMemory shared = shared_memory_of(10 * the.major + the.minor);
  *properties = {
      "host (CUDA kernels on fibers)", the.major,    the.minor, 4, kMemoryBytes, shared.of_block,
      shared.of_multiprocessor,        shared.beside};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int) {
  std::snprintf(id, static_cast<size_t>(bytes), "%s", "");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (device < 0 || device >= the.devices) return give(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  *total = kMemoryBytes;
  *free_bytes = static_cast<size_t>(kMemoryBytes - the.allocations.bytes_in_use(current_device));
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (the.is_lost) return give(cudaErrorIllegalAddress);
  if (spoils_own_recording(the)) return give(cudaErrorStreamCaptureUnsupported);
  *memory = the.allocations.take(current_device, static_cast<int64_t>(bytes));
  return *memory ? cudaSuccess : give(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (!memory) return cudaSuccess;
  if (spoils_own_recording(the)) return give(cudaErrorStreamCaptureUnsupported);
  // Only after all work.
  run_while(the, [] { return true; });
  return the.allocations.give_back(memory) ? cudaSuccess : give(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  const auto count = static_cast<int64_t>(bytes);
  if (spoils_own_recording(the)) return give(cudaErrorStreamCaptureUnsupported);
  if (!memory || bytes == 0 || the.allocations.touches(memory, count))
    return give(cudaErrorInvalidValue);
  if (the.pinned.of(memory, count) != Pinned::kNot)
    return give(cudaErrorHostMemoryAlreadyRegistered);
  ++the.counts.registrations;
  the.counts.largest_registration = std::max(the.counts.largest_registration, count);
  if (!sluice::cuda::host::is_faulted_in(memory, bytes)) ++the.counts.unfaulted_registrations;
  if (the.pinned.bytes() + count > the.refusals.pinned_bytes)
    return give(cudaErrorMemoryAllocation);
  the.pinned.add(memory, count);
  return cudaSuccess;
}
// CUDA waits for nobody here: a copy that is under way then reads what is no longer locked.
cudaError_t cudaHostUnregister(void* memory) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (spoils_own_recording(the)) return give(cudaErrorStreamCaptureUnsupported);
  const int64_t bytes = the.pinned.remove(memory);
  if (bytes == 0) return give(cudaErrorHostMemoryNotRegistered);
  const auto* begin = static_cast<const std::byte*>(memory);
  for (const auto& [stream, queue] : the.streams)
    for (const Work& work : queue) {
      const auto* at = static_cast<const std::byte*>(work.host);
      if (the.is_lost || work.host_bytes == 0 || at >= begin + bytes ||
          at + work.host_bytes <= begin)
        continue;
      std::fprintf(stderr, "host memory is unlocked while a copy of it is under way\n");
      std::abort();
    }
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  {
    Driver& the = driver();
    const MutexLock lock(the.mutex);
    if (the.is_lost) return give(cudaErrorIllegalAddress);
  }
  *stream = new CUstream_st{current_device};
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Driver& the = driver();
  {
    const MutexLock lock(the.mutex);
    run_while(the, [&]() SLUICE_REQUIRES(the.mutex) { return !the.streams[stream].empty(); });
    the.streams.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  stream = stream_of(stream);
  if (spoils_recording(the, stream)) return give(cudaErrorStreamCaptureUnsupported);
  if (!the.streams[stream].empty()) ++the.counts.spinning_waits;
  run_until(the, [&]() SLUICE_REQUIRES(the.mutex) { return the.streams[stream].empty(); });
  return the.is_lost ? give(cudaErrorIllegalAddress) : cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->device = current_device;
  (*event)->is_blocking = (flags & cudaEventBlockingSync) != 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Driver& the = driver();
  {
    const MutexLock lock(the.mutex);
    run_while(the, [&] { return event->reached < event->recorded; });
    for (auto& [stream, queue] : the.streams)
      for (Work& work : queue)
        if (work.wait_for == event) work.wait_for = nullptr;
  }
  delete event;
  return cudaSuccess;
}
// CUDA would record it; nothing of ours asks for that.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  stream = stream_of(stream);
  if (spoils_recording(the, stream)) return give(cudaErrorStreamCaptureUnsupported);
  if (event->device != stream->device) return give(cudaErrorInvalidResourceHandle);
  if (the.is_lost) return give(cudaErrorIllegalAddress);
  const int64_t count = ++event->recorded;
  the.streams[stream].push_back(
      {[event, count] { event->reached = std::max(event->reached, count); }, nullptr, 0, true});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  stream = stream_of(stream);
  if (spoils_recording(the, stream)) return give(cudaErrorStreamCaptureUnsupported);
  the.streams[stream].push_back({{}, event, event->recorded});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  const int64_t count = event->recorded;
  if (event->reached < count && !event->is_blocking) ++the.counts.spinning_waits;
  run_until(the, [&] { return event->reached >= count; });
  return the.is_lost ? give(cudaErrorIllegalAddress) : cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (the.refusals.capture || spoils_recording(the, stream))
    return give(cudaErrorStreamCaptureUnsupported);
  if (!stream || stream->device != current_device) return give(cudaErrorInvalidResourceHandle);
  the.recorded[stream].thread = std::this_thread::get_id();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  *graph = nullptr;
  const auto found = the.recorded.find(stream);
  if (found == the.recorded.end()) return give(cudaErrorInvalidValue);
  if (found->second.thread != std::this_thread::get_id())
    return give(cudaErrorStreamCaptureWrongThread);
  const Recording recording = std::move(found->second);
  the.recorded.erase(found);
  if (recording.is_invalid) return give(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{recording.works};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* runnable, cudaGraph_t graph,
                                          unsigned long long) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (the.refusals.graphs) return give(cudaErrorNotSupported);
  *runnable = new CUgraphExec_st{graph->works};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t runnable) {
  delete runnable;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t runnable, cudaStream_t stream) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (the.is_lost) return give(cudaErrorIllegalAddress);
  ++the.counts.graphs;
  stream = stream_of(stream);
  for (const Work& work : runnable->works) the.streams[stream].push_back(work);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const auto count = static_cast<int64_t>(bytes);
  const cudaError_t status = check_copy(to, count, from, count, kind, stream);
  if (status != cudaSuccess) return give(status);
  count_copies(1, 0);
  enqueue(stream, copy_work(to, from, count, [=] { std::memcpy(to, from, bytes); }));
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride, const void* from, size_t from_stride,
                              size_t row_bytes, size_t rows, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (row_bytes > to_stride || row_bytes > from_stride) return give(cudaErrorInvalidValue);
  if (row_bytes == 0 || rows == 0) return cudaSuccess;
  const auto span = [&](size_t stride) {
    return static_cast<int64_t>((rows - 1) * stride + row_bytes);
  };
  const cudaError_t status = check_copy(to, span(to_stride), from, span(from_stride), kind, stream);
  if (status != cudaSuccess) return give(status);
  count_copies(1, 0);
  const int64_t host_span = std::max(span(to_stride), span(from_stride));
  enqueue(stream, copy_work(to, from, host_span, [=] {
            for (size_t row = 0; row < rows; ++row)
              std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                          static_cast<const std::byte*>(from) + row * from_stride, row_bytes);
          }));
  return cudaSuccess;
}
// The copies of a batch in any order: here the last first.
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes,
                                 size_t count, cudaMemcpyAttributes* attributes,
                                 size_t* first_of_attributes, size_t attribute_count,
                                 cudaStream_t stream) {
  {
    Driver& the = driver();
    const MutexLock lock(the.mutex);
    if (the.refusals.batches) return give(cudaErrorNotSupported);
    if (the.is_lost) return give(cudaErrorIllegalAddress);
    if (!stream || count == 0 || attribute_count == 0 || attribute_count > count || !attributes ||
        first_of_attributes[0] != 0)
      return give(cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i)
      for (const void* side : {static_cast<const void*>(to[i]), from[i]}) {
        const CopySide locked{side, static_cast<int64_t>(bytes[i]), false, false, true};
        if (bytes[i] == 0 || check_side(the, locked, stream) != cudaSuccess)
          return give(cudaErrorInvalidValue);
      }
  }
  count_copies(1, static_cast<int64_t>(count));
  for (size_t i = count; i-- > 0;)
    enqueue(stream, copy_work(to[i], from[i], static_cast<int64_t>(bytes[i]),
                              [to = to[i], from = from[i], bytes = bytes[i]] {
                                std::memcpy(to, from, bytes);
                              }));
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  const cudaStream_t queue = stream_of(stream);
  {
    Driver& the = driver();
    const MutexLock lock(the.mutex);
    if (the.is_lost) return give(cudaErrorIllegalAddress);
    const CopySide side{memory, static_cast<int64_t>(bytes), false, true};
    if (check_side(the, side, queue) != cudaSuccess) return give(cudaErrorInvalidValue);
  }
  Work work{[=] { std::memset(memory, value, bytes); }, nullptr, 0};
  work.device = -1;
  enqueue(queue, std::move(work));
  return cudaSuccess;
}
