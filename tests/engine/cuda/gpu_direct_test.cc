// Weights read straight into the GPU's memory, by a libcufile of the tests' own on the host's
// stand-in: the same tokens as through host memory, under any policy; and what is said when
// libcufile is missing or fails.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/cuda/cuda_backend.h"
#include "src/engine/cuda/gpu_direct_engine.h"
#include "tests/engine/cuda/fake_cufile.h"
#include "tests/engine/model_fixtures.h"
#include "tests/rounds.h"

namespace sluice::testing {
namespace {

// Beside the test program.
std::string fake_library() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfake_cufile.so";
}

class GpuDirect : public ::testing::Test {
 protected:
  GpuDirect() : library_(::dlopen(fake_library().c_str(), RTLD_NOW)) {
    SLUICE_ASSERT(library_, "the tests' library is built beside them");
    const auto find = reinterpret_cast<FakeCufile* (*)()>(::dlsym(library_, "fake_cufile"));
    fake_ = find();
    *fake_ = {};
  }
  ~GpuDirect() override { ::dlclose(library_); }

  static io::FileEngineOptions small_requests() {
    io::FileEngineOptions options = GpuDirectEngine::default_options();
    options.request_bytes = 8192;
    options.bytes_in_flight = 5 * 8192;
    options.threads = 3;
    return options;
  }
  static std::shared_ptr<CudaBackend> backend(io::FileEngineOptions options = small_requests()) {
    auto out = std::make_shared<CudaBackend>(0, 256 * kMiB);
    out->read_with(std::make_unique<GpuDirectEngine>(0, fake_library(), options));
    return out;
  }
  // Half of the weights on disk, the others in both memories.
  static policy::Policy half_on_disk() {
    policy::Policy policy;
    policy.weights = {0.3, 0.2, 0.5};
    policy.micro_batch_sequences = 2;
    policy.micro_batches = 2;
    return policy;
  }
  static std::vector<GenerationRequest> requests(uint32_t seed) {
    Random random(seed);
    return greedy_requests(random_prompts(random, 4, 500), 6);
  }

  void* library_;
  FakeCufile* fake_;
};

TEST_F(GpuDirect, GivesTheTokensThatHostMemoryGives) {
  for (const std::string model : {"stories260k", "stories260k:int4-g32"}) {
    for (uint32_t seed = 1; seed <= rounds(2u); ++seed) {
      SCOPED_TRACE(model + ", seed " + std::to_string(seed));
      Random random(seed);
      const auto asked = requests(seed);
      EngineOptions options = options_for(asked);
      options.compute = ComputeChoice::kF32;
      options.kv_dtype = DType::kF16;
      options.policy = half_on_disk();
      const double disk = std::uniform_real_distribution<double>(0.1, 1)(random);
      const double device = (1 - disk) * std::uniform_real_distribution<double>(0, 1)(random);
      options.policy->weights = {device, 1 - disk - device, disk};
      options.policy->kv = seed % 2 == 0 ? policy::TierShares{0.5, 0, 0.5} : policy::TierShares{};
      options.backend = std::make_shared<CudaBackend>(0, 256 * kMiB);
      const auto expected = run_all(model, options, asked);
      *fake_ = {};
      options.backend = backend();
      const auto actual = run_all(model, options, asked);
      EXPECT_GT(fake_->reads, 0);
      EXPECT_EQ(fake_->open_files, 0) << "the backend outlives the engine that opened them";
      options.backend.reset();
      EXPECT_EQ(fake_->mapped_ranges, 0);
      for (const GenerationRequest& request : asked)
        EXPECT_EQ(actual.at(request.id).tokens, expected.at(request.id).tokens);
    }
  }
  EXPECT_EQ(fake_->open_drivers, 0);
}

TEST_F(GpuDirect, TakesNoHostRingAndReadsEveryByteOnceAPass) {
  const auto asked = requests(9);
  EngineOptions options = options_for(asked);
  options.policy = half_on_disk();
  options.backend = std::make_shared<CudaBackend>(0, 256 * kMiB);
  const auto through_host = Engine::open(fixture_model("stories260k"), options);
  EXPECT_GT(through_host->plan().host_ring_bytes, 0);
  options.backend = backend();
  const auto engine = Engine::open(fixture_model("stories260k"), options);
  EXPECT_EQ(engine->plan().host_ring_bytes, 0);
  EXPECT_LT(engine->plan().memory_bytes(), through_host->plan().memory_bytes());
  ListSource source(asked);
  CollectingSink sink;
  engine->generate(source, sink);
  const int64_t passes = engine->stats().passes;
  const int64_t streamed = engine->plan().streamed_weight_bytes;
  EXPECT_GT(streamed, 0);
  // The last pass may have begun to load for another.
  EXPECT_GE(fake_->read_bytes, passes * streamed);
  EXPECT_LE(fake_->read_bytes, (passes + 1) * streamed);
}

TEST_F(GpuDirect, MemoryThatCantBeMappedIsReadIntoAllTheSame) {
  const auto asked = requests(3);
  EngineOptions options = options_for(asked);
  options.policy = half_on_disk();
  options.backend = std::make_shared<CudaBackend>(0, 256 * kMiB);
  const auto expected = run_all("stories260k", options, asked);
  fake_->maps_no_memory = true;
  std::string said;
  io::FileEngineOptions reading = small_requests();
  reading.log = [&](std::string_view line) { said += std::string(line) + "\n"; };
  options.backend = backend(reading);
  const auto actual = run_all("stories260k", options, asked);
  EXPECT_NE(said.find("can't be mapped (cuFile error 5022, CUDA error 801)"), std::string::npos)
      << said;
  for (const GenerationRequest& request : asked)
    EXPECT_EQ(actual.at(request.id).tokens, expected.at(request.id).tokens);
}

TEST_F(GpuDirect, ReadsWithAFittingNumberOfThreads) {
  const auto asked = requests(5);
  EngineOptions options = options_for(asked);
  options.policy = half_on_disk();
  io::FileEngineOptions reading = small_requests();
  reading.threads = 0;
  options.backend = backend(reading);
  EXPECT_EQ(run_all("stories260k", options, asked).size(), asked.size());
}

TEST_F(GpuDirect, AFailedReadEndsTheRunWithTheFileAndTheNumber) {
  const auto asked = requests(4);
  EngineOptions options = options_for(asked);
  options.policy = half_on_disk();
  std::string said;
  io::FileEngineOptions reading = small_requests();
  reading.log = [&](std::string_view line) { said += std::string(line) + "\n"; };
  options.backend = backend(reading);
  fake_->fails_after = 20;
  try {
    run_all("stories260k", options, asked);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(std::string(error.what()).find("Input/output error"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("reading"), std::string::npos) << error.what();
  }
  EXPECT_NE(said.find("cuFile error 5023"), std::string::npos) << said;
}

std::string refusal(const std::string& library) {
  try {
    GpuDirectEngine(0, library, GpuDirectEngine::default_options());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_NE(error.mend().find("leave it out"), std::string::npos);
    return error.what();
  }
  return "";
}

TEST_F(GpuDirect, SaysWhatIsMissing) {
  EXPECT_NE(refusal("libcufile_of_nobody.so").find("libcufile_of_nobody.so"), std::string::npos);
  EXPECT_NE(refusal("libm.so.6").find("no cuFileDriverOpen"), std::string::npos);
  fake_->has_no_driver = true;
  EXPECT_NE(refusal(fake_library()).find("cuFile error 5001"), std::string::npos);
  const std::string report = GpuDirectEngine::report("libcufile_of_nobody.so");
  EXPECT_TRUE(report.starts_with("no libcufile_of_nobody.so (")) << report;
}

}  // namespace
}  // namespace sluice::testing
