// What goes between host memory and a GPU, and what a driver may refuse there: page-locked memory,
// copies, waits, graphs. On the host's stand-in, which counts.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/shim/host_driver.h"
#include "src/app/report.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/device/merged_copies.h"
#include "src/engine/cuda/cuda_backend.h"
#include "tests/engine/model_fixtures.h"
#include "tests/kernels/cuda/device_array.h"

namespace sluice::testing {
namespace {

using cuda::host::Counts;
using cuda::host::Refusals;

// Lets the driver refuse something while it lives.
class Refusing {
 public:
  explicit Refusing(const Refusals& refusals) { cuda::host::refuse(refusals); }
  ~Refusing() { cuda::host::refuse({}); }
};

std::vector<int32_t> prompt_of(int length, int seed) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back(3 + (7 * i + 13 * seed) % 200);
  return prompt;
}

std::vector<GenerationRequest> requests_of(int count, int max_tokens) {
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < count; ++i) prompts.push_back(prompt_of(3 + i % 9, i));
  auto requests = greedy_requests(prompts, max_tokens);
  for (GenerationRequest& request : requests) request.params.logprobs = 1;
  return requests;
}

// Something in every tier, whose copies are all made.
policy::Policy three_tiers(policy::AttentionPlace attention) {
  policy::Policy policy;
  policy.weights = {0.3, 0.5, 0.2};
  policy.kv = {0.25, 0.75, 0};
  policy.activations = {0.5, 0.5, 0};
  policy.inplace_host_fraction = 0.2;
  policy.micro_batch_sequences = 4;
  policy.micro_batches = 3;
  policy.page_tokens = 4;
  policy.attention = attention;
  return policy;
}

std::map<uint64_t, Answer> run(const std::optional<policy::Policy>& policy,
                               const std::vector<GenerationRequest>& requests,
                               EngineStats* stats = nullptr, std::string* warning = nullptr,
                               std::string* report = nullptr, int gpu = 0) {
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF16;
  options.policy = policy;
  options.backend = std::make_shared<CudaBackend>(gpu, 256 * kMiB);
  if (warning) options.warn = [warning](std::string_view line) { *warning += line; };
  const auto engine = Engine::open(fixture_model("stories260k"), options);
  ListSource source(requests);
  CollectingSink sink;
  engine->generate(source, sink);
  if (stats) *stats = engine->stats();
  if (report) *report = app::run_table(*engine) + app::stats_json(*engine).dump();
  return sink.answers;
}

void expect_equal(const std::map<uint64_t, Answer>& actual,
                  const std::map<uint64_t, Answer>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [id, answer] : expected) {
    EXPECT_FALSE(answer.tokens.empty());
    EXPECT_EQ(actual.at(id).tokens, answer.tokens) << "sequence " << id;
    for (size_t i = 0; i < answer.choices.size(); ++i)
      EXPECT_EQ(actual.at(id).choices[i].logprob, answer.choices[i].logprob);
  }
}

std::optional<policy::Policy> policy_of(const std::string& name) {
  if (name == "resident") return std::nullopt;
  return three_tiers(name == "host" ? policy::AttentionPlace::kHost
                                    : policy::AttentionPlace::kDevice);
}

class CudaRefusals : public ::testing::TestWithParam<std::string> {
 protected:
  void expect_the_same_when_refused(const Refusals& refusals) {
    const auto requests = requests_of(5, 8);
    const auto expected = run(policy_of(GetParam()), requests);
    const Refusing refusing(refusals);
    expect_equal(run(policy_of(GetParam()), requests), expected);
  }
};

TEST_P(CudaRefusals, PageLockedMemory) { expect_the_same_when_refused({.pinned_bytes = 0}); }
TEST_P(CudaRefusals, SomeOfThePageLockedMemory) {
  expect_the_same_when_refused({.pinned_bytes = 300 * kKiB});
}
TEST_P(CudaRefusals, RecordingAStream) { expect_the_same_when_refused({.capture = true}); }
TEST_P(CudaRefusals, MakingAGraph) { expect_the_same_when_refused({.graphs = true}); }
TEST_P(CudaRefusals, BatchesOfCopies) { expect_the_same_when_refused({.batches = true}); }
TEST_P(CudaRefusals, AllAtOnce) {
  expect_the_same_when_refused(
      {.capture = true, .graphs = true, .batches = true, .pinned_bytes = 0});
}

INSTANTIATE_TEST_SUITE_P(Places, CudaRefusals, ::testing::Values("resident", "device", "host"),
                         [](const auto& info) { return info.param; });

// The error of what was refused is told once, not again at the next launch.
TEST(CudaDriver, GoesOnAfterWhatWasRefused) {
  const Refusing refusing({.capture = true, .graphs = true, .pinned_bytes = 0});
  const cuda::OwnedStream stream;
  const cuda::DeviceArray<float> x(std::vector<float>{1, 2, 3});
  const auto launch = [&] { cuda::add_inplace(x.data(), x.data(), 3, stream.get()); };
  std::vector<std::byte> memory(4096);
  EXPECT_THROW(cuda::PinnedRange(memory.data(), 4096), Error);
  EXPECT_NO_THROW(launch());
  EXPECT_THROW(cuda::Graph::begin(stream.get()), Error);
  EXPECT_NO_THROW(launch());
  EXPECT_THROW(cuda::use_device(7), Error);
  EXPECT_NO_THROW(launch());
  cuda::host::refuse({.graphs = true});
  cuda::Graph::begin(stream.get());
  EXPECT_THROW(cuda::Graph::end(stream.get()), Error);
  EXPECT_NO_THROW(launch());
  cuda::Graph::begin(stream.get());
  EXPECT_THROW(cuda::synchronize(stream.get()), Error);
  EXPECT_THROW(cuda::Graph::end(stream.get()), Error);
  EXPECT_NO_THROW(launch());
  cuda::synchronize(stream.get());
  EXPECT_EQ(x.values(), (std::vector<float>{32, 64, 96}));
}

bool can_fault_in() {
  std::byte* memory = map_memory(4096);
  constexpr int kPopulateWrite = 23;
  const bool can = madvise(memory, 4096, kPopulateWrite) == 0;
  unmap_memory(memory, 4096);
  return can;
}

TEST(CudaPinning, IsDoneInPiecesOfMemoryThatIsThere) {
  const Counts before = cuda::host::counts();
  PinnedSource source(0, {.piece = 4 * kMiB});
  std::byte* memory = source.take(10 * kMiB, Registration::kInPieces);
  ASSERT_NE(memory, nullptr);
  const Counts after = cuda::host::counts();
  EXPECT_EQ(after.registrations - before.registrations, 3);
  EXPECT_EQ(after.largest_registration, std::max(before.largest_registration, 4 * kMiB));
  if (can_fault_in()) {
    EXPECT_EQ(after.unfaulted_registrations, before.unfaulted_registrations);
  }
  EXPECT_EQ(source.pinned_bytes(), 10 * kMiB);
  EXPECT_EQ(source.pageable_bytes(), 0);
  EXPECT_EQ(cuda::host::pinned_bytes_in_use(), 10 * kMiB);
  source.give_back(memory, 10 * kMiB);
  EXPECT_EQ(source.pinned_bytes(), 0);
  EXPECT_EQ(cuda::host::pinned_bytes_in_use(), 0);
}

TEST(CudaPinning, KeepsThePiecesThatTheSystemGrants) {
  const Refusing refusing({.pinned_bytes = 9 * kMiB});
  PinnedSource source(0, {.piece = 4 * kMiB});
  std::byte* memory = source.take(20 * kMiB, Registration::kInPieces);
  EXPECT_EQ(source.pinned_bytes(), 8 * kMiB);
  EXPECT_EQ(source.pageable_bytes(), 12 * kMiB);
  using Parts = std::vector<std::tuple<int64_t, int64_t, bool>>;
  const auto cut = [&](int64_t at, int64_t bytes) {
    Parts parts;
    source.cut(memory + at, bytes, [&](int64_t offset, int64_t count, bool is_pinned) {
      parts.emplace_back(offset, count, is_pinned);
    });
    return parts;
  };
  EXPECT_EQ(cut(0, 100), (Parts{{0, 100, true}}));
  EXPECT_EQ(cut(4 * kMiB - 40, 100), (Parts{{0, 40, true}, {40, 60, true}}));
  EXPECT_EQ(cut(4 * kMiB, 4 * kMiB), (Parts{{0, 4 * kMiB, true}}));
  EXPECT_EQ(cut(8 * kMiB - 40, 100), (Parts{{0, 40, true}, {40, 60, false}}));
  EXPECT_EQ(cut(8 * kMiB, 100), (Parts{{0, 100, false}}));
  EXPECT_EQ(cut(8 * kMiB - 100, 100), (Parts{{0, 100, true}}));
  EXPECT_EQ(cut(1, 20 * kMiB - 1), (Parts{{0, 4 * kMiB - 1, true},
                                          {4 * kMiB - 1, 4 * kMiB, true},
                                          {8 * kMiB - 1, 12 * kMiB, false}}));
  // A range that others copy from and to as they like is locked as a whole or not at all.
  std::byte* small = source.take(4 * kMiB, Registration::kWhole);
  EXPECT_EQ(source.pinned_bytes(), 8 * kMiB);
  EXPECT_EQ(source.pageable_bytes(), 16 * kMiB);
  source.give_back(small, 4 * kMiB);
  source.give_back(memory, 20 * kMiB);
  EXPECT_EQ(source.pageable_bytes(), 0);
  // Two pieces would be granted, the third is not: none is kept.
  PinnedSource wholes(0, {.piece = 4 * kMiB});
  memory = wholes.take(12 * kMiB, Registration::kWhole);
  EXPECT_EQ(wholes.pinned_bytes(), 0);
  EXPECT_EQ(wholes.pageable_bytes(), 12 * kMiB);
  EXPECT_EQ(cuda::host::pinned_bytes_in_use(), 0);
  wholes.give_back(memory, 12 * kMiB);
}

TEST(CudaPinning, TransfersAcrossWhatIsLockedAndWhatIsNot) {
  const Refusing refusing({.pinned_bytes = 8 * kKiB});
  CudaDevice device(0, 16 * kMiB, {.piece = 4 * kKiB});
  Arena host("host", kMiB, device.host_memory_source());
  const Buffer from = host.allocate(32 * kKiB, "test");
  const Buffer back = host.allocate(32 * kKiB, "test");
  const Buffer there = device.memory().allocate(32 * kKiB, "test");
  EXPECT_EQ(device.pinned_bytes(), 8 * kKiB);
  EXPECT_EQ(device.pageable_bytes(), 56 * kKiB);
  for (int64_t i = 0; i < from.size(); ++i) from.data()[i] = static_cast<std::byte>(i * 7 % 251);
  device.load(there.data(), from.data(), 10 * kKiB);
  device.transfer(Direction::kUp, 22 * kKiB, [&](const Device::Copy& copy) {
    copy(there.data() + 10 * kKiB, from.data() + 10 * kKiB, 22 * kKiB);
  });
  device.transfer(Direction::kDown, 32 * kKiB, [&](const Device::Copy& copy) {
    copy(back.data() + 6000, there.data() + 6000, 32 * kKiB - 6000);
    copy(back.data(), there.data(), 6000);
  });
  EXPECT_EQ(std::memcmp(from.data(), back.data(), 32 * kKiB), 0);
}

// CUDA takes no copy that begins in one registration and ends in the next.
TEST(CudaPinning, CopiesAreCutWherePiecesEnd) {
  constexpr int64_t kBytes = 64 * kKiB;
  for (const bool refuses_batches : {false, true}) {
    const Refusing refusing({.batches = refuses_batches});
    CudaDevice device(0, 16 * kMiB, {.piece = 8 * kKiB});
    Arena host("host", kMiB, device.host_memory_source());
    const Buffer from = host.allocate(kBytes, "test");
    const Buffer back = host.allocate(kBytes, "test");
    const Buffer there = device.memory().allocate(kBytes, "test");
    for (int64_t i = 0; i < kBytes; ++i) from.data()[i] = static_cast<std::byte>(i * 31 % 253);
    device.load(there.data(), from.data(), 20000);
    device.transfer(Direction::kUp, kBytes - 20000, [&](const Device::Copy& copy) {
      copy(there.data() + 20000, from.data() + 20000, 30000);
      copy(there.data() + 60000, from.data() + 60000, kBytes - 60000);
      copy(there.data() + 50000, from.data() + 50000, 10000);
    });
    device.transfer(Direction::kDown, kBytes, [&](const Device::Copy& copy) {
      copy(back.data() + 1, there.data() + 1, kBytes - 1);
      copy(back.data(), there.data(), 1);
    });
    EXPECT_EQ(std::memcmp(from.data(), back.data(), kBytes), 0);
    // What a driver does not take is said, once.
    EXPECT_EQ(device.notices()->take().size(), refuses_batches ? 1u : 0u);
    EXPECT_TRUE(device.notices()->take().empty());
  }
}

// Memory of which CUDA knows nothing goes in no batch, and batches go on.
TEST(CudaPinning, WhatIsNoMemoryOfTheSourceIsCopiedByItself) {
  CudaDevice device(0, 16 * kMiB);
  const Buffer there = device.memory().allocate(8 * kKiB, "test");
  std::vector<std::byte> from(8 * kKiB, std::byte{3}), back(8 * kKiB);
  device.transfer(Direction::kUp, 8 * kKiB, [&](const Device::Copy& copy) {
    copy(there.data(), from.data(), 4000);
    copy(there.data() + 5000, from.data() + 5000, 3000);
  });
  device.transfer(Direction::kDown, 3000, [&](const Device::Copy& copy) {
    copy(back.data() + 5000, there.data() + 5000, 3000);
  });
  EXPECT_EQ(back[6000], std::byte{3});
  EXPECT_TRUE(device.notices()->take().empty());
}

// What the stand-in refuses as CUDA does.
TEST(CudaDriver, RefusesWhatCudaRefuses) {
  std::byte* const memory = map_memory(16 * kKiB);
  std::memset(memory, 1, 16 * kKiB);
  const cuda::OwnedStream stream;
  const cuda::Stream queue = stream.get();
  const cuda::DeviceMemory there(8 * kKiB), beside(4 * kKiB);
  {
    const cuda::PinnedRange first(memory, 4 * kKiB), second(memory + 4 * kKiB, 4 * kKiB);
    // Two registrations, or one in part; in rows too.
    EXPECT_THROW(cuda::copy_to_device(there.data(), memory + 4000, 200, queue), Error);
    EXPECT_THROW(cuda::copy_to_host(memory + 8000, there.data(), 400, queue), Error);
    EXPECT_THROW(cuda::copy_rows(there.data(), 1024, memory, 1024, 512, 5, queue), Error);
    EXPECT_NO_THROW(cuda::copy_rows(there.data(), 1024, memory, 1024, 512, 4, queue));
    EXPECT_THROW(cuda::PinnedRange(memory + 2048, 4 * kKiB), Error);
    EXPECT_THROW(cuda::PinnedRange(memory, 0), Error);
    // A batch takes page-locked memory alone.
    const std::vector<cuda::Copy> batch{{there.data(), memory, 16},
                                        {there.data() + 64, memory + 9000, 16}};
    EXPECT_THROW(cuda::copy_batch(batch, queue), Error);
    cuda::synchronize(queue);
  }
  // Beyond an allocation; rows beyond it; a host address as the device's and the other way.
  EXPECT_THROW(cuda::copy_to_device(there.data() + 8000, memory, 400, queue), Error);
  EXPECT_THROW(cuda::copy_rows(there.data(), 4096, memory, 4096, 4096, 3, queue), Error);
  EXPECT_THROW(cuda::copy_rows(there.data(), 100, memory, 4096, 400, 3, queue), Error);
  EXPECT_THROW(cuda::copy_on_device(there.data(), beside.data(), 5000, queue), Error);
  EXPECT_THROW(cuda::copy_on_device(there.data(), memory, 16, queue), Error);
  EXPECT_THROW(cuda::copy_to_device(memory, there.data(), 16, queue), Error);
  EXPECT_THROW(cuda::fill_zero(memory, 16, queue), Error);
  EXPECT_THROW(cuda::fill_zero(there.data(), 9000, queue), Error);
  EXPECT_THROW(cuda::DeviceMemory(int64_t{9} << 30), Error);
  // A kernel that is given host memory.
  auto* const floats = reinterpret_cast<float*>(there.data());
  EXPECT_THROW(cuda::add_inplace(floats, reinterpret_cast<float*>(memory), 16, queue), Error);
  // Nothing is reserved, and nothing that is not page-locked is copied, while a stream is recorded.
  for (const int what : {0, 1}) {
    cuda::Graph::begin(queue);
    if (what == 0) {
      EXPECT_THROW(cuda::DeviceMemory(4096), Error);
    } else {
      EXPECT_THROW(cuda::copy_to_device(there.data(), memory, 16, queue), Error);
    }
    EXPECT_THROW(cuda::Graph::end(queue), Error);
  }
  cuda::synchronize(queue);
  unmap_memory(memory, 16 * kKiB);
}

TEST(CudaDriverDeathTest, EndsWhoTouchesTheMemoryOfAGpu) {
  // The tests' own code is built without sanitizers.
  if (!cuda::host::has_walls())
    GTEST_SKIP() << "sanitizers look at the ends of allocations instead";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const cuda::DeviceMemory there(4096);
  EXPECT_DEATH(*const_cast<volatile std::byte*>(there.data()) = std::byte{1},
               "a host thread touched device memory");
}

// Several GPUs while it lives.
class Devices {
 public:
  explicit Devices(int count) { cuda::host::set_devices(count); }
  ~Devices() { cuda::host::set_devices(1); }
};

TEST(CudaDriver, HandlesBelongToADevice) {
  const Devices two(2);
  const cuda::OwnedStream first;
  cuda::Event event;
  const cuda::DeviceMemory memory(64);
  EXPECT_NO_THROW(event.record(first.get()));
  {
    const cuda::DeviceScope scope(1);
    const cuda::OwnedStream second;
    EXPECT_THROW(event.record(second.get()), Error);
    auto* floats = reinterpret_cast<float*>(memory.data());
    EXPECT_THROW(cuda::add_inplace(floats, floats, 4, first.get()), Error);
    EXPECT_THROW(cuda::add_inplace(floats, floats, 4, second.get()), Error);
    const cuda::DeviceMemory own(64);
    floats = reinterpret_cast<float*>(own.data());
    EXPECT_NO_THROW(cuda::add_inplace(floats, floats, 4, second.get()));
    cuda::synchronize(second.get());
  }
  cuda::synchronize(first.get());
  const cuda::DeviceScope none(0);
  EXPECT_THROW(cuda::DeviceScope(2), Error);
}

// Whoever opens an engine on the second GPU may have the first chosen, on every thread.
TEST(CudaDriver, AnEngineRunsOnTheSecondGpu) {
  const auto requests = requests_of(5, 6);
  for (const char* const places : {"resident", "device", "host"}) {
    const auto expected = run(policy_of(places), requests);
    const Devices two(2);
    expect_equal(run(policy_of(places), requests, nullptr, nullptr, nullptr, 1), expected);
  }
}

// As after an illegal address: every call fails from then on. The run ends with an error that says
// so, and everything is given back.
TEST(CudaDriver, ALostDeviceEndsTheRunWithAnError) {
  for (const char* const places : {"resident", "device", "host"})
    for (const int64_t works : {0, 1, 7, 150, 400}) {
      SCOPED_TRACE(std::string(places) + " " + std::to_string(works));
      cuda::host::lose_device_after(works);
      try {
        run(policy_of(places), requests_of(5, 8));
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kDevice) << error.what();
      }
      cuda::host::lose_device_after(INT64_MAX);
      EXPECT_EQ(cuda::host::device_bytes_in_use(), 0);
      EXPECT_EQ(cuda::host::pinned_bytes_in_use(), 0);
    }
}

TEST(CudaPinning, WhatStayedPageableIsSaidWhereItMatters) {
  const auto requests = requests_of(4, 3);
  EngineStats stats;
  std::string warning;
  run(policy_of("host"), requests, &stats, &warning);
  EXPECT_EQ(warning, "");
  EXPECT_EQ(stats.pageable_bytes, 0);
  EXPECT_GT(stats.pinned_bytes, 0);
  const int64_t all = stats.pinned_bytes;
  const Refusing refusing({.pinned_bytes = 0});
  std::string report;
  run(policy_of("host"), requests, &stats, &warning, &report);
  EXPECT_EQ(stats.pinned_bytes, 0);
  EXPECT_NE(report.find("pageable " + fmt::format("{:>10}", format_bytes(all))), std::string::npos)
      << report;
  EXPECT_NE(report.find(fmt::format("\"pageable_bytes\":{}", all)), std::string::npos) << report;
  EXPECT_EQ(stats.pageable_bytes, all);
  EXPECT_NE(warning.find("could not be page-locked"), std::string::npos) << warning;
  // Of a resident model tables and tokens alone go there.
  warning.clear();
  run(std::nullopt, requests, &stats, &warning);
  EXPECT_GT(stats.pageable_bytes, 0);
  EXPECT_EQ(warning, "");
}

// Copies of one more pass of 48 sequences in one micro-batch, a sublayer: a batch is one.
double copies_a_sublayer(const policy::Policy& policy, bool refuses_batches) {
  const Refusing refusing({.batches = refuses_batches});
  Counts counts[2];
  for (const int tokens : {4, 5}) {
    const Counts before = cuda::host::counts();
    auto requests = requests_of(48, tokens);
    for (GenerationRequest& request : requests) request.prompt.resize(2, 5);
    run(policy, requests);
    counts[tokens - 4] = cuda::host::counts();
    counts[tokens - 4].copies -= before.copies;
  }
  constexpr double kSublayers = 12;  // of stories260k: embed, 5 layers of two, head
  const double copies = static_cast<double>(counts[1].copies - counts[0].copies) / kSublayers;
  ::testing::Test::RecordProperty("copies_a_sublayer", std::to_string(copies));
  return copies;
}

policy::Policy of_48(policy::AttentionPlace attention) {
  policy::Policy policy = three_tiers(attention);
  policy.kv = {0, 1, 0};
  policy.activations = {1, 0, 0};
  policy.inplace_host_fraction = 0;
  policy.micro_batch_sequences = 48;
  policy.micro_batches = 1;
  return policy;
}

// Queries, keys, values and outputs: as many copies as for one sequence. One by one they would be
// 145, and the pages below 82.
TEST(CudaCopies, AttentionOnTheHostTakesAFewForAnyNumberOfSequences) {
  EXPECT_LE(copies_a_sublayer(of_48(policy::AttentionPlace::kHost), true), 8);
}
TEST(CudaCopies, PagesOfManySequencesTakeAFew) {
  EXPECT_LE(copies_a_sublayer(of_48(policy::AttentionPlace::kDevice), false), 8);
  // Pages that lie beside each other go together.
  EXPECT_LE(copies_a_sublayer(of_48(policy::AttentionPlace::kDevice), true), 32);
}

// Whoever waits for a transfer, or for the GPU beside attention on the host, sleeps.
TEST(CudaWaits, LeaveTheirCoresWhereTheHostComputes) {
  const Counts before = cuda::host::counts();
  run(policy_of("host"), requests_of(6, 4));
  run(policy_of("device"), requests_of(6, 4));
  // What ends a runner's life waits for the stream once more, as nothing is queued.
  EXPECT_EQ(cuda::host::counts().spinning_waits, before.spinning_waits);
  run(std::nullopt, requests_of(6, 4));
  EXPECT_GT(cuda::host::counts().spinning_waits, before.spinning_waits);
}

TEST(RunsOfRows, JoinNeighboursAlone) {
  constexpr auto kDevice = ChunkAttention::kDevice;
  constexpr auto kFresh = ChunkAttention::kFresh;
  constexpr auto kHost = ChunkAttention::kHost;
  using Runs = std::vector<std::pair<int64_t, int64_t>>;
  MicroBatch batch;
  const auto runs_of = [&](const auto& wanted) {
    Runs runs;
    for_each_run(batch, wanted,
                 [&](int64_t first, int64_t rows) { runs.emplace_back(first, rows); });
    return runs;
  };
  EXPECT_EQ(runs_of(is_host_attention), Runs());
  const std::pair<ChunkAttention, int32_t> chunks[] = {{kHost, 1},  {kHost, 2},  {kDevice, 3},
                                                       {kFresh, 4}, {kHost, 1},  {kDevice, 1},
                                                       {kHost, 5},  {kDevice, 1}};
  int32_t row = 0;
  for (const auto& [attention, count] : chunks) {
    Chunk& chunk = batch.chunks.emplace_back();
    chunk.attention = attention;
    chunk.row_begin = row;
    chunk.count = count;
    row += count;
  }
  EXPECT_EQ(runs_of(is_host_attention), (Runs{{0, 3}, {10, 1}, {12, 5}}));
  EXPECT_EQ(runs_of(is_lower_attention), (Runs{{0, 3}, {6, 5}, {12, 5}}));
  EXPECT_EQ(runs_of([](ChunkAttention) { return true; }), (Runs{{0, 18}}));
}

TEST(MergedCopies, JoinWhatLiesSideBySideOnBothSides) {
  std::byte to[100], from[100];
  const auto copy = [&](int a, int b, int64_t bytes) { return RangeCopy{to + a, from + b, bytes}; };
  EXPECT_TRUE(merge_neighbours({}).empty());
  EXPECT_EQ(merge_neighbours({copy(10, 20, 5), copy(0, 10, 10), copy(15, 25, 5), copy(50, 3, 0)}),
            (std::vector<RangeCopy>{copy(0, 10, 20)}));
  // Neighbours on one side alone.
  EXPECT_EQ(merge_neighbours({copy(0, 10, 10), copy(10, 21, 5)}),
            (std::vector<RangeCopy>{copy(0, 10, 10), copy(10, 21, 5)}));
  EXPECT_EQ(merge_neighbours({copy(0, 10, 10), copy(11, 20, 5)}),
            (std::vector<RangeCopy>{copy(0, 10, 10), copy(11, 20, 5)}));
}

}  // namespace
}  // namespace sluice::testing
