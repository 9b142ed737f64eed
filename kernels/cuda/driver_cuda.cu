#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_runtime.h"
#else
#include <cuda_runtime.h>
#endif

#include <string>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/vocabulary.h"
#include "src/base/error.h"

namespace sluice::cuda {

namespace {
cudaStream_t of(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t of(EventTag* event) { return reinterpret_cast<cudaEvent_t>(event); }

// CUDA leaves an error with the thread until it is asked for it, and the next launch asks. Who goes
// on without what was refused must not meet it there: what is told of is taken away.
cudaError_t take(cudaError_t status) noexcept {
  if (status != cudaSuccess) cudaGetLastError();
  return status;
}

void check(cudaError_t status, const char* doing) {
  if (take(status) == cudaSuccess) return;
  const bool is_memory = status == cudaErrorMemoryAllocation;
  throw Error(is_memory ? ErrorKind::kResource : ErrorKind::kDevice,
              std::string(doing) + ": " + cudaGetErrorString(status) + " (" +
                  cudaGetErrorName(status) + ")",
              is_memory ? "lower --gpu-mem, or free memory of the GPU (nvidia-smi shows whose)"
                        : "sluice doctor shows what the driver says");
}
}  // namespace

void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) check(status, (std::string("launching ") + kernel).c_str());
}

std::vector<DeviceProperties> devices() noexcept {
  std::vector<DeviceProperties> out;
  int count = 0;
  if (take(cudaGetDeviceCount(&count)) != cudaSuccess) return out;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (take(cudaGetDeviceProperties(&properties, i)) != cudaSuccess) continue;
    DeviceProperties device;
    device.name = properties.name;
    device.compute_capability = properties.major * 10 + properties.minor;
    device.multiprocessors = {properties.multiProcessorCount,
                              static_cast<int64_t>(properties.sharedMemPerMultiprocessor),
                              static_cast<int64_t>(properties.reservedSharedMemPerBlock)};
    device.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    device.shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    device.has_bf16 = device.compute_capability >= 80;
    device.has_fp8 = device.compute_capability >= 89;
    char bus_id[32] = "";
    if (take(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), i)) == cudaSuccess)
      device.pci_bus_id = bus_id;
    out.push_back(device);
  }
  return out;
}

int64_t free_device_bytes(int index) {
  const DeviceScope scope(index);
  size_t free_bytes = 0;
  size_t total = 0;
  check(cudaMemGetInfo(&free_bytes, &total), "asking for free GPU memory");
  return static_cast<int64_t>(free_bytes);
}

void use_device(int index) { check(cudaSetDevice(index), "choosing a GPU"); }

DeviceScope::DeviceScope(int index) {
  int now = 0;
  check(cudaGetDevice(&now), "asking for the thread's GPU");
  if (now == index) return;
  use_device(index);
  before_ = now;
}
DeviceScope::~DeviceScope() {
  if (before_ >= 0) take(cudaSetDevice(before_));
}

DeviceMemory::DeviceMemory(int64_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  if (bytes > 0) check(cudaMalloc(&memory, static_cast<size_t>(bytes)), "reserving GPU memory");
  memory_.reset(static_cast<std::byte*>(memory));
}
void DeviceMemory::Free::operator()(std::byte* memory) const noexcept { take(cudaFree(memory)); }

PinnedRange::PinnedRange(void* memory, int64_t bytes) {
  check(cudaHostRegister(memory, static_cast<size_t>(bytes), cudaHostRegisterPortable),
        "pinning host memory");
  memory_.reset(memory);
}
void PinnedRange::Unpin::operator()(void* memory) const noexcept {
  take(cudaHostUnregister(memory));
}

OwnedStream::OwnedStream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  stream_.reset(reinterpret_cast<Stream>(stream));
}
void OwnedStream::Destroy::operator()(Stream stream) const noexcept {
  take(cudaStreamDestroy(of(stream)));
}

Event::Event(Waiting waiting) {
  cudaEvent_t event = nullptr;
  const unsigned blocking = waiting == Waiting::kSleeps ? cudaEventBlockingSync : 0u;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | blocking), "making an event");
  event_.reset(reinterpret_cast<EventTag*>(event));
}
void Event::Destroy::operator()(EventTag* event) const noexcept {
  take(cudaEventDestroy(of(event)));
}
void Event::record(Stream stream) {
  check(cudaEventRecord(of(event_.get()), of(stream)), "recording an event");
}
void Event::make_wait(Stream stream) const {
  check(cudaStreamWaitEvent(of(stream), of(event_.get()), 0), "waiting for an event");
}
void Event::synchronize() const {
  check(cudaEventSynchronize(of(event_.get())), "waiting for the GPU");
}

void Graph::begin(Stream stream) {
  check(cudaStreamBeginCapture(of(stream), cudaStreamCaptureModeThreadLocal),
        "beginning to record a graph");
}
Graph Graph::end(Stream stream) {
  cudaGraph_t recorded = nullptr;
  check(cudaStreamEndCapture(of(stream), &recorded), "recording a graph");
  cudaGraphExec_t runnable = nullptr;
  const cudaError_t status = cudaGraphInstantiateWithFlags(&runnable, recorded, 0);
  take(cudaGraphDestroy(recorded));
  check(status, "making a graph");
  Graph graph;
  graph.graph_.reset(reinterpret_cast<GraphTag*>(runnable));
  return graph;
}
void Graph::abandon(Stream stream) noexcept {
  cudaGraph_t recorded = nullptr;
  if (take(cudaStreamEndCapture(of(stream), &recorded)) == cudaSuccess && recorded)
    take(cudaGraphDestroy(recorded));
}
void Graph::Destroy::operator()(GraphTag* graph) const noexcept {
  take(cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph)));
}
void Graph::launch(Stream stream) const {
  check(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph_.get()), of(stream)),
        "launching a graph");
}

void copy_to_device(void* device, const void* host, int64_t bytes, Stream stream) {
  check(
      cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, of(stream)),
      "copying to the GPU");
}
void copy_to_host(void* host, const void* device, int64_t bytes, Stream stream) {
  check(
      cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, of(stream)),
      "copying from the GPU");
}
void copy_on_device(void* to, const void* from, int64_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, of(stream)),
        "copying on the GPU");
}
// The toolkit has a call for many copies since 12.8, as it is now since 13.
bool copies_in_batches(int index) noexcept {
#if CUDART_VERSION >= 13000
  int takes_host_addresses = 0;
  return take(cudaDeviceGetAttribute(&takes_host_addresses,
                                     cudaDevAttrCanUseHostPointerForRegisteredMem, index)) ==
             cudaSuccess &&
         takes_host_addresses != 0;
#else
  (void)index;
  return false;
#endif
}
void copy_batch(std::span<const Copy> copies, Stream stream) {
  if (copies.empty()) return;
#if CUDART_VERSION >= 13000
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> bytes;
  for (const Copy& copy : copies) {
    to.push_back(copy.to);
    from.push_back(copy.from);
    bytes.push_back(static_cast<size_t>(copy.bytes));
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  check(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), bytes.size(), &attributes,
                             &first, 1, of(stream)),
        "copying in a batch");
#else
  (void)stream;
  throw Error(ErrorKind::kDevice, "this build's CUDA has no batches of copies");
#endif
}
void copy_rows(void* to, int64_t to_stride, const void* from, int64_t from_stride,
               int64_t row_bytes, int64_t rows, Stream stream) {
  check(cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride), from,
                          static_cast<size_t>(from_stride), static_cast<size_t>(row_bytes),
                          static_cast<size_t>(rows), cudaMemcpyDefault, of(stream)),
        "copying rows");
}
void fill_zero(void* device, int64_t bytes, Stream stream) {
  check(cudaMemsetAsync(device, 0, static_cast<size_t>(bytes), of(stream)), "clearing GPU memory");
}
void synchronize(Stream stream) { check(cudaStreamSynchronize(of(stream)), "waiting for the GPU"); }

}  // namespace sluice::cuda
