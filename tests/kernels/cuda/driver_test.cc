// Streams recorded as graphs: what runs, with what memory, and what may not be asked meanwhile.
#include "kernels/cuda/driver.h"

#include <gtest/gtest.h>

#include "kernels/cuda/rows.h"
#include "src/base/error.h"
#include "tests/kernels/cuda/device_array.h"
#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_driver.h"
#include "kernels/cuda/shim/host_grid.h"
#endif

namespace sluice::cuda {
namespace {

class CudaGraph : public ::testing::Test {
 protected:
  // y += x, twice.
  Graph record() {
    Graph::begin(stream.get());
    add_inplace(y.data(), x.data(), 3, stream.get());
    add_inplace(y.data(), x.data(), 3, stream.get());
    return Graph::end(stream.get());
  }
  void set(const DeviceArray<float>& array, const std::vector<float>& values) {
    copy_to_device(array.data(), values.data(), 12, stream.get());
    synchronize(stream.get());
  }
  std::vector<float> values(const DeviceArray<float>& array) {
    synchronize(stream.get());
    return array.values();
  }
  OwnedStream stream;
  DeviceArray<float> x{std::vector<float>{1, 2, 3}};
  DeviceArray<float> y{std::vector<float>{0, 0, 0}};
};

TEST_F(CudaGraph, RunsOnlyWhenItIsLaunchedAndThenWithWhatIsInMemory) {
  const Graph graph = record();
  EXPECT_EQ(values(y), (std::vector<float>{0, 0, 0}));
  graph.launch(stream.get());
  EXPECT_EQ(values(y), (std::vector<float>{2, 4, 6}));
  set(x, {10, 0, -1});
  graph.launch(stream.get());
  graph.launch(stream.get());
  EXPECT_EQ(values(y), (std::vector<float>{42, 4, 2}));
}

TEST_F(CudaGraph, RunsInTheOrderOfItsStream) {
  const Graph graph = record();
  graph.launch(stream.get());
  copy_on_device(y.data(), x.data(), 12, stream.get());
  graph.launch(stream.get());
  EXPECT_EQ(values(y), (std::vector<float>{3, 6, 9}));
}

TEST_F(CudaGraph, WhatIsAbandonedNeverRuns) {
  Graph::begin(stream.get());
  add_inplace(y.data(), x.data(), 3, stream.get());
  Graph::abandon(stream.get());
  EXPECT_EQ(values(y), (std::vector<float>{0, 0, 0}));
  record().launch(stream.get());
  EXPECT_EQ(values(y), (std::vector<float>{2, 4, 6}));
}

TEST_F(CudaGraph, AStreamThatIsRecordedCannotBeWaitedFor) {
  Graph::begin(stream.get());
  EXPECT_THROW(synchronize(stream.get()), Error);
  Graph::abandon(stream.get());
  EXPECT_NO_THROW(synchronize(stream.get()));
}

TEST(CudaDevices, SayWhatAMultiprocessorHolds) {
  const Multiprocessors& processors = first_device().multiprocessors;
  EXPECT_GE(processors.count, 1);
  EXPECT_GE(processors.shared_bytes, 64 << 10);
  EXPECT_LE(processors.beside, 1 << 10);
  EXPECT_EQ(blocks_that_fit(processors, 4, processors.shared_bytes), 1);  // none is one
}

#ifdef SLUICE_CUDA_ON_HOST
// As a GPU of that compute capability does.
TEST(CudaDevices, RefuseABlockThatTheirSharedMemoryDoesNotHold) {
  const OwnedStream stream;
  const std::pair<int, int64_t> kMost[] = {{75, 64}, {80, 163}, {86, 99}, {90, 227}, {120, 99}};
  for (const auto& [capability, kib] : kMost) {
    SCOPED_TRACE(capability);
    host::set_capability(capability / 10, capability % 10);
    EXPECT_EQ(first_device().shared_bytes_per_block, kib << 10);
    const auto ask = [&](int64_t bytes) {
      host::enqueue_kernel("large", {{1}, kWarp, bytes}, stream.get(), [] {});
      synchronize(stream.get());
    };
    EXPECT_NO_THROW(ask(kib << 10));
    EXPECT_THROW(ask((kib << 10) + 1), Error);
  }
  host::set_capability(9, 0);
}
#endif

}  // namespace
}  // namespace sluice::cuda
