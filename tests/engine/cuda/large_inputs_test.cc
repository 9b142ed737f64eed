// Inputs of products beyond what f16 holds: the CPU's logits all the same.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/cuda/cuda_testing.h"
#include "tests/jobs/temporary_folder.h"
#include "tests/whole_file.h"

namespace sluice::testing {
namespace {

// stories260k with the rows of `up` larger and those of `down` smaller by a power of two: what it
// computes stays the same, what `down` is given becomes more than f16 holds.
// Those of norms likewise, before q, k, v and before gate and up, with `of_norms`.
std::string with_large_activations(const TemporaryFolder& folder, bool of_norms = false,
                                   int power = 18) {
  namespace fs = std::filesystem;
  const fs::path made = folder.file("stories260k-" + std::string(of_norms ? "norms-" : "gates-") +
                                    std::to_string(power));
  fs::copy(fixture_model("stories260k"), made);
  const std::string file = (made / "model.safetensors").string();
  std::string bytes = whole_file(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const auto tensors = nlohmann::json::parse(bytes.substr(8, header));
  for (const auto& [name, tensor] : tensors.items()) {
    const bool is_norm = name.ends_with("layernorm.weight");
    const bool is_up = of_norms ? is_norm : name.ends_with("up_proj.weight");
    const bool reads_norms = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") ||
                             name.ends_with("v_proj.weight") ||
                             name.ends_with("gate_proj.weight") || name.ends_with("up_proj.weight");
    if (!is_up && !(of_norms ? reads_norms : name.ends_with("down_proj.weight"))) continue;
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    for (size_t at = 8 + header + begin; at < 8 + header + end; at += 4) {
      float value = 0;
      std::memcpy(&value, bytes.data() + at, 4);
      value = std::ldexp(value, is_up ? power : -power);
      std::memcpy(bytes.data() + at, &value, 4);
    }
  }
  std::ofstream(file, std::ios::binary) << bytes;
  return made.string();
}

// A few rows of them are 16-bit numbers, bf16 where the GPU has it.
void expect_large_fp8_inputs_right() {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt{5, 70, 300, 41, 12, 8, 99};
  expect_logits_of_the_cpu(with_large_activations(folder) + ":fp8+f8", greedy_requests({prompt}, 1),
                           0.15);
}

TEST(CudaEngineFp8, LargeActivationsGiveTheCpusLogits) { expect_large_fp8_inputs_right(); }

// Inputs beyond f16's range, few rows and many, of every kind of matrix: each row has a scale.
void expect_large_inputs_right() {
  Random random(17);
  for (const bool of_norms : {false, true}) {
    const TemporaryFolder folder;
    const std::string made = with_large_activations(folder, of_norms, of_norms ? 12 : 15);
    for (const char* format : {"f16", "int4", "int8", "nf4", "q4_0", "mxfp4", "fp8", "q4_k"})
      for (const size_t tokens : {size_t{7}, size_t{80}}) {
        SCOPED_TRACE(std::string(format) + (of_norms ? " norms " : " gates ") +
                     std::to_string(tokens));
        std::vector<int32_t> prompt(tokens);
        for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, 500));
        expect_logits_of_the_cpu(made + ":" + format, greedy_requests({prompt}, 1), 2e-2);
      }
  }
}

TEST(CudaEngineLarge, InputsGiveTheCpusLogits) { expect_large_inputs_right(); }

#ifdef SLUICE_CUDA_ON_HOST
TEST(CudaEngineLarge, InputsGiveTheCpusLogitsOnTuring) {
  cuda::host::set_capability(7, 5);
  expect_large_inputs_right();
  expect_large_fp8_inputs_right();
  cuda::host::set_capability(9, 0);
}

#endif

}  // namespace
}  // namespace sluice::testing
