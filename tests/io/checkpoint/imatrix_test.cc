// Importance matrices in llama.cpp's two forms.
#include "io/checkpoint/imatrix.h"

#include <cmath>

#include "tests/io/checkpoint/files.h"
#include "tests/rounds.h"

namespace sluice::io {
namespace {

namespace fs = std::filesystem;

fs::path imatrix_fixture(const std::string& end) {
  return fs::path(SLUICE_FIXTURES) / "imatrix" / ("stories260k" + end);
}

std::string i32(int32_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
std::string f32(float value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

// An entry of the older form: times, and what its values are.
std::string entry(const std::string& name, int32_t times, const std::vector<float>& values) {
  std::string out = i32(static_cast<int32_t>(name.size())) + name + i32(times) +
                    i32(static_cast<int32_t>(values.size()));
  for (const float value : values) out += f32(value);
  return out;
}

class ImatrixFile : public testing::Test {
 protected:
  Imatrix read(const std::string& bytes) {
    write_all(path(), bytes);
    return read_imatrix(path());
  }
  void refused(const std::string& bytes, std::initializer_list<std::string_view> words) {
    write_all(path(), bytes);
    expect_refusal([&] { read_imatrix(path()); }, ErrorKind::kFile, words);
  }
  fs::path path() const { return folder_ / "imatrix"; }

  TemporaryFolder folder_;
};

TEST_F(ImatrixFile, BothFormsSayTheSame) {
  const Imatrix older = read_imatrix(imatrix_fixture(".dat"));
  const Imatrix newer = read_imatrix(imatrix_fixture(".gguf"));
  ASSERT_EQ(older.size(), 35u);
  ASSERT_EQ(newer.size(), 35u);
  for (const auto& [name, one] : older) {
    const ImatrixEntry& other = newer.at(name);
    EXPECT_EQ(other.experts, 1);
    ASSERT_EQ(one.squares.size(), other.squares.size()) << name;
    for (size_t i = 0; i < one.squares.size(); ++i)
      EXPECT_NEAR(one.squares[i], other.squares[i], 1e-5f * one.squares[i]) << name;
  }
  EXPECT_EQ(older.at("blk.4.ffn_down.weight").squares.size(), 172u);
}

TEST_F(ImatrixFile, TheOlderFormHasSumsOfMeans) {
  const Imatrix one =
      read(i32(2) + entry("a", 4, {8, 0, 2}) + entry("b", 0, {0}) + i32(4) + i32(3) + "txt");
  EXPECT_EQ(one.at("a").squares, (std::vector<float>{2, 0, 0.5f}));
  EXPECT_EQ(one.at("b").squares, std::vector<float>{0});
}

TEST_F(ImatrixFile, WhatIsWrongIsNamed) {
  const std::string good = i32(1) + entry("blk.0.attn_q.weight", 2, {1, 2});
  EXPECT_EQ(read(good).size(), 1u);
  refused("", {"cut short"});
  refused("{\"a\": 1}", {"name of"});
  refused(i32(0), {"has 0 entries"});
  refused(i32(-1), {"has -1 entries"});
  refused(i32(2) + good.substr(4), {"cut short"});
  refused(i32(1) + i32(1 << 30) + "a", {"entry 1 of 1", "1073741824 bytes"});
  refused(i32(1) + i32(-5), {"-5 bytes"});
  refused(i32(1) + i32(1) + "a" + i32(1) + i32(1 << 30), {"values", "cut short"});
  refused(i32(1) + i32(1) + "a" + i32(1) + i32(-3), {"a has -3 values"});
  refused(i32(1) + i32(1) + "a" + i32(1) + i32(0), {"a has 0 values"});
  refused(i32(2) + entry("a", 1, {1}) + entry("a", 1, {1}), {"a comes twice"});
  refused(i32(1) + entry("a", -1, {1}), {"a: a count of -1"});
  refused(i32(1) + entry("a", 1, {-1}), {"a: -1 is no sum of squares"});
  refused(i32(1) + entry("a", 1, {std::nanf("")}), {"no sum of squares"});
  refused(i32(1) + entry("a", 1, {INFINITY}), {"no sum of squares"});
  for (size_t size = 0; size < good.size(); ++size)
    refused(good.substr(0, size), {"llama-imatrix"});
}

TEST_F(ImatrixFile, OtherGgufFilesAreNone) {
  expect_refusal([] { read_imatrix(fixture("made/tiny.gguf")); }, ErrorKind::kFile,
                 {"tiny.gguf", "no importance matrix"});
  expect_refusal([] { read_imatrix("/none/imatrix.dat"); }, ErrorKind::kFile, {"/none"});
  expect_refusal([&] { read_imatrix(folder_.path()); }, ErrorKind::kFile, {});
}

TEST_F(ImatrixFile, AnyByteMayBeWrongAndAnyLengthMissing) {
  for (const char* end : {".dat", ".gguf"}) {
    const std::string whole = read_all(imatrix_fixture(end));
    const auto open_and_check = [&](const std::string& bytes) {
      write_all(path(), bytes);
      try {
        for (const auto& [name, one] : read_imatrix(path()))
          for (const float square : one.squares) ASSERT_TRUE(std::isfinite(square) && square >= 0);
      } catch (const Error& error) {
        ASSERT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::kFile));
      }
    };
    // What is behind the first entries repeats.
    const size_t step = is_sanitized() ? 13 : 1;
    for (size_t i = 0; i < whole.size(); i += i < 400 ? step : 173 * step) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ (i % 2 ? 0x80 : 0x01));
      open_and_check(changed);
      if (i % 5 == 0) open_and_check(whole.substr(0, i));
      if (HasFatalFailure()) FAIL() << end << " byte " << i;
    }
  }
}

}  // namespace
}  // namespace sluice::io
