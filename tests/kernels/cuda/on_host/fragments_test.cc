// What a lane holds in a matrix instruction, against CuTe's layouts (tests/fixtures/cuda,
// scripts/golden/fragment_layouts.py): the stand-in, which the kernels are checked on, and the PTX
// that a GPU is given instead.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {
namespace {

// Of each lane (row, column) of its elements, in the order of its registers.
using Layout = std::vector<std::vector<std::pair<int, int>>>;

struct Reference {
  std::map<std::string, Layout> layouts;  // "f16_k16 a"
  std::map<std::string, std::string> ptx;
};

Reference read_reference() {
  Reference out;
  std::ifstream file(std::string(SLUICE_FIXTURES) + "/cuda/fragment_layouts.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, which, lane;
    if (line.empty() || line[0] == '#') continue;
    words >> name >> which;
    if (name == "ptx") {
      words >> out.ptx[which.substr(0, which.size() - 1)];
      continue;
    }
    words >> lane;
    auto& elements = out.layouts[name + " " + which].emplace_back();
    char comma = 0;
    for (std::pair<int, int> at; words >> at.first >> comma >> at.second;) elements.push_back(at);
  }
  return out;
}

const Reference& reference() {
  static const Reference the = read_reference();
  return the;
}
const Layout& layout(const std::string& name) { return reference().layouts.at(name); }

void on_a_warp(const std::function<void(size_t lane)>& body) {
  host::run_grid("fragments", {{}, kWarp, 0}, 0,
                 [&] { body(static_cast<size_t>(thread_index())); });
}

// Small whole numbers: exact in any type and sum.
int value_of(int row, int col, int of) { return (row * 7 + col * 5 + of) % 13 - 6; }

// A lane's registers with what `bits` makes of its elements.
template <size_t kRegisters>
void fill(uint32_t (&registers)[kRegisters], const std::vector<std::pair<int, int>>& elements,
          int of, const std::function<uint32_t(int)>& bits) {
  const size_t each = elements.size() / kRegisters;
  for (size_t i = 0; i < elements.size(); ++i)
    registers[i / each] |= bits(value_of(elements[i].first, elements[i].second, of))
                           << (i % each * 32 / each);
}

template <class Sum, class Multiply>
void expect_product(const std::string& name, int depth, const std::function<uint32_t(int)>& bits,
                    const Multiply& multiply) {
  SCOPED_TRACE(name);
  Sum got[kWarp][4] = {};
  on_a_warp([&](size_t lane) {
    uint32_t a[4] = {}, b[2] = {};
    fill(a, layout(name + " a").at(lane), 1, bits);
    fill(b, layout(name + " b").at(lane), 2, bits);
    multiply(got[lane], a, b);
  });
  for (size_t lane = 0; lane < kWarp; ++lane)
    for (size_t i = 0; i < 4; ++i) {
      const auto [row, col] = layout(name + " d").at(lane).at(i);
      int sum = 0;
      for (int k = 0; k < depth; ++k) sum += value_of(row, k, 1) * value_of(col, k, 2);
      ASSERT_EQ(got[lane][i], static_cast<Sum>(sum)) << "lane " << lane << ", element " << i;
    }
}

TEST(CudaFragments, ProductsTakeAndGiveWhatCuTeSays) {
  expect_product<float>(
      "f16_k16", 16, [](int v) { return uint32_t{f32_to_f16(static_cast<float>(v))}; },
      [](auto& d, auto& a, auto& b) { mma_16x8x16_f16(d, a, b); });
  expect_product<float>(
      "bf16_k16", 16, [](int v) { return uint32_t{f32_to_bf16(static_cast<float>(v))}; },
      [](auto& d, auto& a, auto& b) { mma_16x8x16_bf16(d, a, b); });
  expect_product<int>(
      "s8_k32", 32, [](int v) { return static_cast<uint32_t>(v) & 255u; },
      [](auto& d, auto& a, auto& b) { mma_16x8x32_s8(d, a, b); });
}

TEST(CudaFragments, RowsAreLoadedAsCuTeSays) {
  alignas(16) uint16_t rows[kWarp][8];
  for (int row = 0; row < kWarp; ++row)
    for (int i = 0; i < 8; ++i) rows[row][i] = static_cast<uint16_t>(row * 8 + i + 1);
  for (const bool is_transposed : {false, true}) {
    uint32_t got[kWarp][4];
    on_a_warp([&](size_t lane) {
      if (is_transposed)
        load_matrix_x4_transposed(got[lane], rows[lane]);
      else
        load_matrix_x4(got[lane], rows[lane]);
    });
    const Layout& expected = layout(is_transposed ? "ldmatrix transposed" : "ldmatrix plain");
    for (size_t lane = 0; lane < kWarp; ++lane)
      for (size_t i = 0; i < 8; ++i) {
        const auto [row, element] = expected.at(lane).at(i);
        ASSERT_EQ((got[lane][i / 2] >> (i % 2 * 16)) & 0xffffu, rows[row][element])
            << "lane " << lane << ", element " << i;
      }
  }
}

// Elements [first, first + count) of each lane, of which rows begin at `row` and columns at `col`.
Layout part_of(const Layout& whole, size_t first, size_t count, int row, int col) {
  Layout out;
  for (const auto& lane : whole) {
    auto& elements = out.emplace_back();
    for (size_t i = first; i < first + count; ++i)
      elements.emplace_back(lane.at(i).first - row, lane.at(i).second - col);
  }
  return out;
}

// Turing has half the depth (device_vocabulary.h): registers of the large products are those of its
// own, two of k 8, or four of k 16 whose rows are half as many.
TEST(CudaFragments, RegistersOfLargeProductsAreThoseOfTuringsSmallOnes) {
  for (int half = 0; half < 2; ++half) {
    const auto at = static_cast<size_t>(half);
    EXPECT_EQ(part_of(layout("f16_k16 a"), 4 * at, 4, 0, 8 * half), layout("f16_k8 a"));
    EXPECT_EQ(part_of(layout("f16_k16 b"), 2 * at, 2, 0, 8 * half), layout("f16_k8 b"));
  }
  EXPECT_EQ(layout("f16_k16 d"), layout("f16_k8 d"));
  for (int part = 0; part < 4; ++part) {
    const auto at = static_cast<size_t>(part);
    EXPECT_EQ(part_of(layout("s8_k32 a"), 4 * at, 4, part % 2 * 8, part / 2 * 16),
              layout("s8_k16 a"));
    EXPECT_EQ(part_of(layout("s8_k32 b"), at / 2 * 4, 4, 0, part / 2 * 16), layout("s8_k16 b"));
    EXPECT_EQ(part_of(layout("s8_k32 d"), at % 2 * 2, 2, part % 2 * 8, 0), layout("s8_k16 d"));
  }
}

std::multiset<std::string> parts_of(const std::string& instruction) {
  std::multiset<std::string> parts;
  std::istringstream text(instruction);
  for (std::string part; std::getline(text, part, '.');) parts.insert(part);
  return parts;
}

// Every matrix instruction in the vocabulary is one of CuTe's, with its registers in their order.
TEST(CudaFragments, PtxIsThatOfCuTe) {
  std::ifstream file(std::string(SLUICE_FIXTURES) + "/../../kernels/cuda/shim/device_vocabulary.h");
  std::stringstream whole;
  whole << file.rdbuf();
  std::string text = whole.str();
  ASSERT_FALSE(text.empty());
  const std::map<std::string, std::string> operands{
      {"f16_k16", "d[0] d[1] d[2] d[3] a[0] a[1] a[2] a[3] b[0] b[1]"},
      {"bf16_k16", "d[0] d[1] d[2] d[3] a[0] a[1] a[2] a[3] b[0] b[1]"},
      {"s8_k32", "d[0] d[1] d[2] d[3] a[0] a[1] a[2] a[3] b[0] b[1]"},
      {"f16_k8", "d[0] d[1] d[2] d[3] a[2 * half] a[2 * half + 1] b[half]"},
      {"s8_k16", "d[part % 2 * 2] d[part % 2 * 2 + 1] a[part] b[part / 2]"},
      {"plain", "out[0] out[1] out[2] out[3]"},
      {"transposed", "out[0] out[1] out[2] out[3]"}};
  std::set<std::string> seen;
  const std::regex instruction(R"re("((mma|ldmatrix)\.[\w.]+)[^;]*;[^;]*?\);)re");
  for (std::sregex_iterator at(text.begin(), text.end(), instruction), end; at != end; ++at) {
    std::string named;
    for (const auto& [name, ptx] : reference().ptx)
      if (parts_of(ptx) == parts_of((*at)[1])) named = name;
    ASSERT_NE(named, "") << (*at)[1] << " is not known to CuTe";
    std::string registers;
    const std::string asked = at->str();
    const std::regex element(R"re(\((\w+\[[^\]]+\])\))re");
    for (std::sregex_iterator one(asked.begin(), asked.end(), element); one != end; ++one)
      registers += (registers.empty() ? "" : " ") + (*one)[1].str();
    EXPECT_EQ(registers, operands.at(named)) << named;
    seen.insert(named);
  }
  EXPECT_EQ(seen.size(), operands.size());
}

}  // namespace
}  // namespace sluice::cuda
