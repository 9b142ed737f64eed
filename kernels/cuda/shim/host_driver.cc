#include "kernels/cuda/shim/host_driver.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/shim/host_grid.h"
#include "src/base/error.h"

namespace sluice::cuda {

struct StreamTag {};
struct EventTag {
  int64_t recorded = 0;  // how many times
  int64_t reached = 0;
};

namespace {
// Work in one stream: something to do, or an event to wait for or to reach.
struct Work {
  std::function<void()> run;
  const EventTag* wait_for = nullptr;
  int64_t wait_count = 0;
};
}  // namespace

struct GraphTag {
  std::vector<Work> works;
};

namespace {

struct Driver {
  std::mutex mutex;  // guards all below
  std::map<StreamTag*, std::deque<Work>> streams;
  std::map<StreamTag*, std::vector<Work>> recorded;  // of streams that are being recorded
  uint64_t seed = 0;
  std::mt19937_64 random{0};
  std::exception_ptr error;
  std::map<std::byte*, int64_t> allocations;
  int64_t bytes_in_use = 0;
  int64_t kernels = 0;
  int64_t graphs = 0;
  bool refuses_graphs = false;
};

Driver& driver() {
  static Driver the;
  return the;
}

bool may_run(const Work& work) {
  return !work.wait_for || work.wait_for->reached >= work.wait_count;
}

// Runs the first work of some stream that may run; false when there is none. With the mutex held.
bool run_one(Driver& the) {
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
  try {
    work.run();
  } catch (...) {
    the.error = std::current_exception();
  }
  return true;
}

void run_until(Driver& the, const std::function<bool()>& is_reached) {
  while (!is_reached())
    if (!run_one(the))
      throw Error(ErrorKind::kInternal, "streams wait for each other: no work may run");
  if (the.error) std::rethrow_exception(std::exchange(the.error, nullptr));
}

void enqueue(Stream stream, Work work) {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  const auto recording = the.recorded.find(stream);
  (recording != the.recorded.end() ? recording->second.emplace_back()
                                   : the.streams[stream].emplace_back()) = std::move(work);
}

// As CUDA does, and sooner. With the mutex held.
void refuse_recorded(const Driver& the, Stream stream) {
  if (the.recorded.contains(stream))
    throw Error(ErrorKind::kDevice, "a stream that is being recorded can't be waited for");
}

constexpr int64_t kMemoryBytes = int64_t{8} << 30;
}  // namespace

namespace host {
void set_seed(uint64_t seed) {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  the.seed = seed;
  the.random.seed(seed);
}

void refuse_graphs(bool refuses) {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  the.refuses_graphs = refuses;
}

int64_t device_bytes_in_use() {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  return the.bytes_in_use;
}

int64_t graphs_run() {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  return the.graphs;
}

int64_t kernels_run() {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  return the.kernels;
}

void enqueue_kernel(const char* name, const LaunchShape& shape, Stream stream,
                    std::function<void()> body) {
  enqueue(stream, {[name, shape, body = std::move(body)] {
                     Driver& the = driver();  // its mutex is held by who runs the work
                     ++the.kernels;
                     run_grid(name, shape, the.seed > 1 ? the.random() | 2 : the.seed, body);
                   },
                   nullptr, 0});
}

void enqueue_work(Stream stream, std::function<void()> work) {
  enqueue(stream, {std::move(work), nullptr, 0});
}
}  // namespace host

std::vector<DeviceProperties> devices() noexcept {
  DeviceProperties host;
  host.name = "host (CUDA kernels on fibers)";
  host.compute_capability = 90;
  host.multiprocessors = 4;
  host.memory_bytes = kMemoryBytes;
  host.shared_bytes_per_block = 163 << 10;
  host.has_bf16 = true;
  host.has_fp8 = true;
  return {host};
}

int64_t free_device_bytes(int) { return kMemoryBytes - host::device_bytes_in_use(); }

void use_device(int index) {
  if (index != 0) throw Error(ErrorKind::kDevice, "there is one device, number 0");
}

DeviceMemory::DeviceMemory(int64_t bytes) : bytes_(bytes) {
  if (bytes <= 0) return;
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, static_cast<size_t>(bytes)) != 0)
    throw Error(ErrorKind::kResource, "no memory to stand for the GPU's");
  std::memset(memory, 0xff, static_cast<size_t>(bytes));
  memory_.reset(static_cast<std::byte*>(memory));
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  the.allocations[memory_.get()] = bytes;
  the.bytes_in_use += bytes;
}
void DeviceMemory::Free::operator()(std::byte* memory) const noexcept {
  Driver& the = driver();
  {
    const std::lock_guard lock(the.mutex);
    // As cudaFree: only after all work.
    while (run_one(the)) {
    }
    the.bytes_in_use -= the.allocations[memory];
    the.allocations.erase(memory);
  }
  std::free(memory);
}

PinnedRange::PinnedRange(void* memory, int64_t) : memory_(memory) {}
void PinnedRange::Unpin::operator()(void*) const noexcept {}

OwnedStream::OwnedStream() : stream_(new StreamTag) {}
void OwnedStream::Destroy::operator()(Stream stream) const noexcept {
  Driver& the = driver();
  {
    const std::lock_guard lock(the.mutex);
    while (!the.streams[stream].empty() && run_one(the)) {
    }
    the.streams.erase(stream);
  }
  delete stream;
}

Event::Event() : event_(new EventTag) {}
void Event::Destroy::operator()(EventTag* event) const noexcept {
  Driver& the = driver();
  {
    const std::lock_guard lock(the.mutex);
    while (event->reached < event->recorded && run_one(the)) {
    }
    for (auto& [stream, queue] : the.streams)
      for (Work& work : queue)
        if (work.wait_for == event) work.wait_for = nullptr;
  }
  delete event;
}
void Event::record(Stream stream) {
  EventTag* event = event_.get();
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  refuse_recorded(the, stream);
  const int64_t count = ++event->recorded;
  the.streams[stream].push_back(
      {[event, count] { event->reached = std::max(event->reached, count); }, nullptr, 0});
}
void Event::make_wait(Stream stream) const {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  refuse_recorded(the, stream);
  the.streams[stream].push_back({{}, event_.get(), event_->recorded});
}
void Event::synchronize() const {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  const int64_t count = event_->recorded;
  run_until(the, [&] { return event_->reached >= count; });
}

void Graph::begin(Stream stream) {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  refuse_recorded(the, stream);
  the.recorded[stream];
}
Graph Graph::end(Stream stream) {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  Graph graph;
  graph.graph_.reset(new GraphTag{std::move(the.recorded.at(stream))});
  the.recorded.erase(stream);
  if (the.refuses_graphs)
    throw Error(ErrorKind::kDevice, "recording a graph: refused, as a test wants it");
  return graph;
}
void Graph::abandon(Stream stream) noexcept {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  the.recorded.erase(stream);
}
void Graph::Destroy::operator()(GraphTag* graph) const noexcept { delete graph; }
void Graph::launch(Stream stream) const {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  ++the.graphs;
  for (const Work& work : graph_->works) the.streams[stream].push_back(work);
}

void copy_to_device(void* device, const void* host, int64_t bytes, Stream stream) {
  copy_on_device(device, host, bytes, stream);
}
void copy_to_host(void* host, const void* device, int64_t bytes, Stream stream) {
  copy_on_device(host, device, bytes, stream);
}
void copy_on_device(void* to, const void* from, int64_t bytes, Stream stream) {
  enqueue(stream, {[=] { std::memcpy(to, from, static_cast<size_t>(bytes)); }, nullptr, 0});
}
void copy_rows(void* to, int64_t to_stride, const void* from, int64_t from_stride,
               int64_t row_bytes, int64_t rows, Stream stream) {
  enqueue(stream, {[=] {
                     for (int64_t row = 0; row < rows; ++row)
                       std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                                   static_cast<const std::byte*>(from) + row * from_stride,
                                   static_cast<size_t>(row_bytes));
                   },
                   nullptr, 0});
}
void fill_zero(void* device, int64_t bytes, Stream stream) {
  enqueue(stream, {[=] { std::memset(device, 0, static_cast<size_t>(bytes)); }, nullptr, 0});
}
void synchronize(Stream stream) {
  Driver& the = driver();
  const std::lock_guard lock(the.mutex);
  refuse_recorded(the, stream);
  run_until(the, [&] { return the.streams[stream].empty(); });
}

}  // namespace sluice::cuda
