// What goes between host memory and a GPU, and what a driver may refuse there: page-locked memory,
// copies, waits, graphs. On the host's stand-in, which counts.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <nlohmann/json.hpp>

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
                               std::string* report = nullptr) {
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF16;
  options.policy = policy;
  options.backend = std::make_shared<CudaBackend>(0, 256 * kMiB);
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
  PinnedSource source({.piece = 4 * kMiB, .whole = 8 * kMiB});
  std::byte* memory = source.take(10 * kMiB);
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
  PinnedSource source({.piece = 4 * kMiB, .whole = 8 * kMiB});
  std::byte* memory = source.take(20 * kMiB);
  EXPECT_EQ(source.pinned_bytes(), 8 * kMiB);
  EXPECT_EQ(source.pageable_bytes(), 12 * kMiB);
  std::vector<std::pair<int64_t, int64_t>> parts;
  const auto cut = [&](int64_t at, int64_t bytes) {
    parts.clear();
    source.cut(memory + at, bytes,
               [&](int64_t offset, int64_t count) { parts.emplace_back(offset, count); });
    return parts;
  };
  using Parts = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(cut(0, 100), (Parts{{0, 100}}));
  EXPECT_EQ(cut(8 * kMiB - 40, 100), (Parts{{0, 40}, {40, 60}}));
  EXPECT_EQ(cut(8 * kMiB, 100), (Parts{{0, 100}}));
  EXPECT_EQ(cut(8 * kMiB - 100, 100), (Parts{{0, 100}}));
  // A range that others copy from and to as they like is locked as a whole or not at all.
  std::byte* small = source.take(4 * kMiB);
  EXPECT_EQ(source.pinned_bytes(), 8 * kMiB);
  EXPECT_EQ(source.pageable_bytes(), 16 * kMiB);
  source.give_back(small, 4 * kMiB);
  source.give_back(memory, 20 * kMiB);
  EXPECT_EQ(source.pageable_bytes(), 0);
  // Two pieces would be granted, the third is not: none is kept.
  PinnedSource wholes({.piece = 4 * kMiB, .whole = 12 * kMiB});
  memory = wholes.take(12 * kMiB);
  EXPECT_EQ(wholes.pinned_bytes(), 0);
  EXPECT_EQ(wholes.pageable_bytes(), 12 * kMiB);
  EXPECT_EQ(cuda::host::pinned_bytes_in_use(), 0);
  wholes.give_back(memory, 12 * kMiB);
}

TEST(CudaPinning, TransfersAcrossWhatIsLockedAndWhatIsNot) {
  const Refusing refusing({.pinned_bytes = 8 * kKiB});
  CudaDevice device(0, 16 * kMiB, {.piece = 4 * kKiB, .whole = 4 * kKiB});
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

// Copies of one more pass of 48 sequences in one micro-batch, a sublayer.
double copies_a_sublayer(const policy::Policy& policy) {
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
  EXPECT_LE(copies_a_sublayer(of_48(policy::AttentionPlace::kHost)), 8);
}
TEST(CudaCopies, PagesOfManySequencesTakeAFew) {
  EXPECT_LE(copies_a_sublayer(of_48(policy::AttentionPlace::kDevice)), 8);
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
