#include "kernels/cuda/shim/host_runtime.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cuda/shim/host_driver.h"
#include "kernels/cuda/shim/host_grid.h"
#include "src/base/error.h"
#include "src/base/mutex.h"

struct CUstream_st {};
struct CUevent_st {
  int64_t recorded = 0;  // how many times
  int64_t reached = 0;
  bool is_blocking = false;
};

namespace {
using sluice::Error;
using sluice::ErrorKind;
using sluice::Mutex;
using sluice::MutexLock;

// Work in one stream: something to do, or an event to wait for or to reach.
struct Work {
  std::function<void()> run;
  const CUevent_st* wait_for = nullptr;
  int64_t wait_count = 0;
  bool is_event = false;  // takes no time
};

struct Recording {
  std::vector<Work> works;
  bool is_invalid = false;  // something was asked meanwhile that can't be recorded
};
}  // namespace

struct CUgraph_st {
  std::vector<Work> works;
};
struct CUgraphExec_st {
  std::vector<Work> works;
};

namespace {
constexpr int64_t kMemoryBytes = int64_t{8} << 30;
// Behind each allocation, looked at when it goes: what a kernel writes there shows. None where the
// address sanitizer looks itself, which sees reads too.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kGuardBytes = 0;
#else
constexpr size_t kGuardBytes = 256;
#endif
constexpr unsigned char kGuard = 0xa5;

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
  std::map<void*, int64_t> allocations SLUICE_GUARDED_BY(mutex);
  std::map<std::byte*, int64_t> pinned SLUICE_GUARDED_BY(mutex);
  int64_t bytes_in_use SLUICE_GUARDED_BY(mutex) = 0;
  int64_t works SLUICE_GUARDED_BY(mutex) = 0;  // run, without events
  bool is_timed_by_work SLUICE_GUARDED_BY(mutex) = false;
  int major SLUICE_GUARDED_BY(mutex) = 9;
  int minor SLUICE_GUARDED_BY(mutex) = 0;
  int64_t pinned_bytes SLUICE_GUARDED_BY(mutex) = 0;
  sluice::cuda::host::Refusals refusals SLUICE_GUARDED_BY(mutex);
  sluice::cuda::host::Counts counts SLUICE_GUARDED_BY(mutex);
};

Driver& driver() {
  static Driver the;
  return the;
}

thread_local cudaError_t last_error = cudaSuccess;

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
  if (!work.is_event) ++the.works;
  try {
    work.run();
  } catch (...) {
    the.error = std::current_exception();
  }
  return true;
}

void run_until(Driver& the, const std::function<bool()>& is_reached) SLUICE_REQUIRES(the.mutex) {
  while (!is_reached())
    if (!run_one(the))
      throw Error(ErrorKind::kInternal, "streams wait for each other: no work may run");
  if (the.error) std::rethrow_exception(std::exchange(the.error, nullptr));
}

void enqueue(cudaStream_t stream, Work work) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
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

// Bytes of the range that are page-locked.
size_t pinned_part(Driver& the, const void* memory, size_t bytes) SLUICE_REQUIRES(the.mutex) {
  const auto* begin = static_cast<const std::byte*>(memory);
  const std::byte* end = begin + bytes;
  size_t total = 0;
  for (const auto& [at, size] : the.pinned) {
    const std::byte* from = std::max<const std::byte*>(begin, at);
    const std::byte* to = std::min<const std::byte*>(end, at + size);
    if (from < to) total += static_cast<size_t>(to - from);
  }
  return total;
}

// Host memory of a copy is page-locked as a whole or not at all; a recorded copy's is.
cudaError_t check_host(const void* memory, size_t bytes, cudaStream_t stream) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  const size_t pinned = pinned_part(the, memory, bytes);
  if (pinned != 0 && pinned != bytes) return cudaErrorInvalidValue;
  if (pinned == 0 && bytes > 0 && spoils_recording(the, stream))
    return cudaErrorStreamCaptureUnsupported;
  return cudaSuccess;
}

void count_copies(int64_t calls, int64_t batched) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.counts.copies += calls;
  the.counts.batched_copies += batched;
}

// Nobody could catch what a destructor throws.
void require_whole_guard(const void* memory, int64_t bytes) {
  const auto* guard = static_cast<const unsigned char*>(memory) + bytes;
  if (std::all_of(guard, guard + kGuardBytes, [](unsigned char byte) { return byte == kGuard; }))
    return;
  std::fprintf(stderr, "something wrote behind %lld bytes of device memory\n",
               static_cast<long long>(bytes));
  std::abort();
}

bool is_faulted_in(void* memory, size_t bytes) {
  constexpr size_t kPage = 4096;
  std::vector<unsigned char> pages((bytes + kPage - 1) / kPage);
  if (mincore(memory, bytes, pages.data()) != 0) return false;
  return std::all_of(pages.begin(), pages.end(),
                     [](unsigned char page) { return (page & 1) != 0; });
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
  return the.bytes_in_use;
}

int64_t pinned_bytes_in_use() {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  return the.pinned_bytes;
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

void enqueue_kernel(const char* name, const LaunchShape& shape, Stream stream,
                    std::function<void()> body) {
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
  const auto* begin = static_cast<const std::byte*>(at);
  const auto after = the.allocations.upper_bound(const_cast<void*>(at));
  if (after == the.allocations.begin()) return false;
  const auto& [memory, size] = *std::prev(after);
  return begin + bytes <= static_cast<const std::byte*>(memory) + size;
}

void enqueue_work(Stream stream, std::function<void()> work) {
  enqueue(reinterpret_cast<cudaStream_t>(stream), {std::move(work), nullptr, 0});
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
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorHostMemoryNotRegistered: break;
  }
  return "cudaErrorHostMemoryNotRegistered";
}
const char* cudaGetErrorString(cudaError_t) { return "refused by the host's stand-in"; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
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
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return give(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = kMemoryBytes;
  *free_bytes = static_cast<size_t>(kMemoryBytes - sluice::cuda::host::device_bytes_in_use());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (posix_memalign(memory, 256, bytes + kGuardBytes) != 0) return give(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xff, bytes);
  std::memset(static_cast<std::byte*>(*memory) + bytes, kGuard, kGuardBytes);
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  the.allocations[*memory] = static_cast<int64_t>(bytes);
  the.bytes_in_use += static_cast<int64_t>(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  Driver& the = driver();
  {
    const MutexLock lock(the.mutex);
    // Only after all work.
    while (run_one(the)) {
    }
    const int64_t bytes = the.allocations[memory];
    if (memory) require_whole_guard(memory, bytes);
    the.bytes_in_use -= bytes;
    the.allocations.erase(memory);
  }
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  const auto count = static_cast<int64_t>(bytes);
  if (pinned_part(the, memory, bytes) > 0) return give(cudaErrorInvalidValue);
  ++the.counts.registrations;
  the.counts.largest_registration = std::max(the.counts.largest_registration, count);
  if (!is_faulted_in(memory, bytes)) ++the.counts.unfaulted_registrations;
  if (the.pinned_bytes + count > the.refusals.pinned_bytes) return give(cudaErrorMemoryAllocation);
  the.pinned[static_cast<std::byte*>(memory)] = count;
  the.pinned_bytes += count;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  const auto found = the.pinned.find(static_cast<std::byte*>(memory));
  if (found == the.pinned.end()) return give(cudaErrorHostMemoryNotRegistered);
  the.pinned_bytes -= found->second;
  the.pinned.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Driver& the = driver();
  {
    const MutexLock lock(the.mutex);
    while (!the.streams[stream].empty() && run_one(the)) {
    }
    the.streams.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (spoils_recording(the, stream)) return give(cudaErrorStreamCaptureUnsupported);
  if (!the.streams[stream].empty()) ++the.counts.spinning_waits;
  run_until(the, [&]() SLUICE_REQUIRES(the.mutex) { return the.streams[stream].empty(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->is_blocking = (flags & cudaEventBlockingSync) != 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Driver& the = driver();
  {
    const MutexLock lock(the.mutex);
    while (event->reached < event->recorded && run_one(the)) {
    }
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
  if (spoils_recording(the, stream)) return give(cudaErrorStreamCaptureUnsupported);
  const int64_t count = ++event->recorded;
  the.streams[stream].push_back(
      {[event, count] { event->reached = std::max(event->reached, count); }, nullptr, 0, true});
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
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
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  if (the.refusals.capture || spoils_recording(the, stream))
    return give(cudaErrorStreamCaptureUnsupported);
  the.recorded[stream];
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Driver& the = driver();
  const MutexLock lock(the.mutex);
  *graph = nullptr;
  const auto found = the.recorded.find(stream);
  if (found == the.recorded.end()) return give(cudaErrorInvalidValue);
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
  ++the.counts.graphs;
  for (const Work& work : runnable->works) the.streams[stream].push_back(work);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToHost) {
    const void* host = kind == cudaMemcpyHostToDevice ? from : to;
    if (const cudaError_t status = check_host(host, bytes, stream); status != cudaSuccess)
      return give(status);
  }
  count_copies(1, 0);
  enqueue(stream, {[=] { std::memcpy(to, from, bytes); }, nullptr, 0});
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride, const void* from, size_t from_stride,
                              size_t row_bytes, size_t rows, cudaMemcpyKind, cudaStream_t stream) {
  if (row_bytes > to_stride || row_bytes > from_stride) return give(cudaErrorInvalidValue);
  count_copies(1, 0);
  enqueue(stream, {[=] {
                     for (size_t row = 0; row < rows; ++row)
                       std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                                   static_cast<const std::byte*>(from) + row * from_stride,
                                   row_bytes);
                   },
                   nullptr, 0});
  return cudaSuccess;
}
// The copies of a batch in any order: here the last first.
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes,
                                 size_t count, cudaMemcpyAttributes*, size_t*, size_t,
                                 cudaStream_t stream) {
  {
    Driver& the = driver();
    const MutexLock lock(the.mutex);
    if (the.refusals.batches) return give(cudaErrorNotSupported);
    if (!stream || count == 0) return give(cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i)
      for (const void* side : {static_cast<const void*>(to[i]), from[i]}) {
        const size_t pinned = pinned_part(the, side, bytes[i]);
        if (bytes[i] == 0 || (pinned != 0 && pinned != bytes[i]))
          return give(cudaErrorInvalidValue);
      }
  }
  count_copies(1, static_cast<int64_t>(count));
  for (size_t i = count; i-- > 0;)
    enqueue(stream,
            {[to = to[i], from = from[i], bytes = bytes[i]] { std::memcpy(to, from, bytes); },
             nullptr, 0});
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  enqueue(stream, {[=] { std::memset(memory, value, bytes); }, nullptr, 0});
  return cudaSuccess;
}
