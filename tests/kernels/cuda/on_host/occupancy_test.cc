// Blocks of a multiprocessor that plans count with, against what the compiler's registers and
// shared memory allow on each architecture (docs/gpu/kernel-budget.tsv, scripts/kernel_budget.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/int8_linear.h"
#include "kernels/cuda/quantised_linear.h"

namespace sluice::cuda {
namespace {

// As the driver says of them: compute capability, shared memory of a multiprocessor.
const std::map<std::string, Multiprocessors> kProcessors{
    {"75", {40, 64 << 10, 0}},         {"80", {108, 164 << 10, 1 << 10}},
    {"86", {82, 100 << 10, 1 << 10}},  {"89", {128, 100 << 10, 1 << 10}},
    {"90", {132, 228 << 10, 1 << 10}}, {"120", {170, 100 << 10, 1 << 10}}};

struct Row {
  std::string kernel;
  std::string arch;
  int blocks;
};

std::vector<Row> rows_of(const std::string& kernel) {
  std::ifstream file(std::string(SLUICE_FIXTURES) + "/../../docs/gpu/kernel-budget.tsv");
  std::vector<Row> out;
  std::string name;  // a kernel that is empty is the line's above
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, '\t');) cells.push_back(cell);
    if (cells.size() != 12) continue;
    if (!cells[1].empty()) name = cells[1];
    if (name.rfind(kernel + "<", 0) == 0) out.push_back({name, cells[2], std::stoi(cells[10])});
  }
  return out;
}

// The format whose panels the kernel with this `run` takes; a run of 0 is a whole row.
WeightFormat format_of(const std::string& encoding, const std::string& run) {
  if (encoding == "5") return *parse_weight_format("mxfp4");  // its groups have one size
  if (encoding == "15") return *parse_weight_format("q4_0");
  if (encoding == "16") return *parse_weight_format("iq4");
  const std::map<std::string, std::string> names{
      {"1", "int4"}, {"2", "int8"}, {"3", "nf4"}, {"4", "fp8"}};
  return *parse_weight_format(names.at(encoding) + (run == "0" ? "" : "-g" + run));
}

TEST(CudaOccupancy, ProductsOfFewRowsArePlannedAsTheyFit) {
  constexpr int64_t kK = 4096;
  const std::regex name(R"re(.*<Encoding:(\d+), (true|false), (\d), (\d+)>.*)re");
  int rows = 0;
  for (const Row& row : rows_of("quantised_linear_kernel")) {
    std::smatch part;
    ASSERT_TRUE(std::regex_match(row.kernel, part, name)) << row.kernel;
    EXPECT_EQ(linear_blocks(format_of(part[1], part[4]), 8 * std::stoi(part[3]), kK,
                            kProcessors.at(row.arch)),
              std::min(row.blocks, 2))
        << row.kernel << " sm_" << row.arch;
    ++rows;
  }
  EXPECT_GT(rows, 300);
}

// They have no shared memory to speak of: registers bound them.
TEST(CudaOccupancy, ProductsOfKTypesArePlannedAsTheyFit) {
  int rows = 0;
  for (const Row& row : rows_of("k_linear_kernel")) {
    EXPECT_EQ(linear_blocks(*parse_weight_format("q4_k"), 8, 4096, kProcessors.at(row.arch)),
              std::min(row.blocks, 2))
        << row.kernel << " sm_" << row.arch;
    ++rows;
  }
  EXPECT_EQ(rows, 9 * 2 * 2 * 6);
}

TEST(CudaOccupancy, ProductsOfCodesArePlannedAsTheyFit) {
  constexpr int64_t kK = 4096;
  const std::regex name(R"re(.*<Encoding:(\d+), (\d), (\d+)>.*)re");
  int rows = 0;
  for (const Row& row : rows_of("int8_linear_kernel")) {
    std::smatch part;
    ASSERT_TRUE(std::regex_match(row.kernel, part, name)) << row.kernel;
    EXPECT_EQ(linear_int8_blocks(format_of(part[1], part[3]), 8 * std::stoi(part[2]), kK,
                                 kProcessors.at(row.arch)),
              std::min(row.blocks, 2))
        << row.kernel << " sm_" << row.arch;
    ++rows;
  }
  EXPECT_GT(rows, 100);
}

TEST(CudaOccupancy, AttentionToLatentRowsIsPlannedAsItFits) {
  const std::regex name(R"re(.*<(true|false), (\d+), (true|false)>.*)re");
  int rows = 0;
  for (const Row& row : rows_of("latent_attention_kernel")) {
    std::smatch part;
    ASSERT_TRUE(std::regex_match(row.kernel, part, name)) << row.kernel;
    kernels::AttentionShape shape;
    shape.num_heads = 128;
    shape.num_kv_heads = 1;
    shape.head_dim = std::stoi(part[2]);
    shape.has_values = false;
    shape.kv_dtype = part[1] == "true" ? DType::kBF16 : DType::kF16;
    const Multiprocessors& processors = kProcessors.at(row.arch);
    EXPECT_EQ(attention_fits(shape, processors), row.blocks > 0) << row.kernel << row.arch;
    EXPECT_EQ(attention_blocks(shape, processors), std::clamp(row.blocks, 1, 2))
        << row.kernel << " sm_" << row.arch;
    ++rows;
  }
  EXPECT_EQ(rows, 2 * 3 * 2 * 6);
}

TEST(CudaOccupancy, AttentionOfWideHeadsIsPlannedAsItFits) {
  int rows = 0;
  for (const Row& row : rows_of("wide_attention_kernel")) {
    kernels::AttentionShape shape;
    shape.num_heads = shape.num_kv_heads = 8;
    shape.head_dim = 512;
    shape.page_tokens = 16;
    shape.kv_dtype = DType::kF16;
    const Multiprocessors& processors = kProcessors.at(row.arch);
    EXPECT_TRUE(attention_fits(shape, processors)) << row.kernel << " sm_" << row.arch;
    EXPECT_EQ(attention_blocks(shape, processors), std::min(row.blocks, 3))
        << row.kernel << " sm_" << row.arch;
    ++rows;
  }
  EXPECT_EQ(rows, 2 * 2 * 6);
}

TEST(CudaOccupancy, AttentionOfFewRowsIsPlannedAsItFits) {
  const KvFormat kinds[] = {DType::kF16, DType::kBF16, KvFormat(KvEncoding::kInt8),
                            KvFormat(KvEncoding::kInt4), kInt8KeysInt4Values};
  const std::regex name(R"re(.*<KvKind:(\d), (\d+), true, (true|false)>.*)re");
  int rows = 0;
  for (const Row& row : rows_of("attention_kernel")) {
    std::smatch part;
    if (!std::regex_match(row.kernel, part, name)) continue;
    kernels::AttentionShape shape;
    shape.num_heads = shape.num_kv_heads = 8;
    shape.head_dim = std::stoi(part[2]);
    shape.page_tokens = 16;
    shape.kv_dtype = kinds[std::stoi(part[1])];
    const int most = shape.head_dim > 64 ? 3 : 4;
    EXPECT_EQ(attention_blocks(shape, kProcessors.at(row.arch)), std::min(row.blocks, most))
        << row.kernel << " sm_" << row.arch;
    ++rows;
  }
  EXPECT_GE(rows, 144);
}

// Where one block fits, a wave is half as many: rows are split into other shares.
TEST(CudaOccupancy, SplitsFillWhatFits) {
  const WeightFormat format = *parse_weight_format("int4-g64");
  for (const auto& [arch, processors] : kProcessors)
    for (const int64_t m : {1, 64})
      for (const int64_t n : {4096, 8192, 14336}) {
        const LinearPlan plan = plan_linear_quantised(format, m, n, 8192, processors);
        const int64_t fit = int64_t{linear_blocks(format, m, 8192, processors)} * processors.count;
        const int64_t blocks = n / 128 * plan.splits;
        const int64_t waves = (blocks + fit - 1) / fit;
        EXPECT_GE(blocks * 100, waves * fit * 65) << "sm_" << arch << ", m " << m << ", n " << n;
      }
}

}  // namespace
}  // namespace sluice::cuda
