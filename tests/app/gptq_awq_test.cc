// GPTQ and AWQ checkpoints: made here bit by bit from a fixture, converted, and held against the
// published formula; both give the same tokens, being the same numbers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "io/checkpoint/packed_store.h"
#include "io/convert/safetensors_writer.h"
#include "kernels/elementwise.h"
#include "kernels/quantise.h"
#include "src/app/store_layout.h"
#include "src/base/error.h"
#include "tests/app/repacked_run.h"
#include "tests/app/store_values.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
constexpr int64_t kGroup = 32;
const char* const kFixture = "opt-tiny";
const char* const kOther = "fc2";  // the modules that "dynamic" gives 8 bits

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<int> codes;         // [rows, cols]
  std::vector<int> zeros;         // [groups, rows], 1..15; with 8 bits 128
  std::vector<float> scales;      // [groups, rows], exact in f16
  std::vector<int32_t> group_of;  // [cols]
  float value(int64_t row, int64_t col) const {
    const auto at = static_cast<size_t>(group_of[static_cast<size_t>(col)] * rows + row);
    return scales[at] *
           static_cast<float>(codes[static_cast<size_t>(row * cols + col)] - zeros[at]);
  }
};

struct Made {
  std::vector<io::NewTensor> tensors;
  std::vector<std::vector<std::byte>> bytes;
  template <typename T>
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    tensors.push_back({name, dtype, std::move(shape)});
    bytes.emplace_back(values.size() * sizeof(T));
    std::memcpy(bytes.back().data(), values.data(), bytes.back().size());
  }
};

class GptqAwq : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sluice-foreign-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  // The fixture with every matrix of its layers quantised as `method` packs it.
  fs::path make(const std::string& method, const Json& settings,
                const std::string& fixture = kFixture) {
    const BoundModel model = BoundModel::open(testing::fixture_model(fixture));
    std::mt19937 random(5);
    Made made;
    matrices_.clear();
    std::set<std::string> seen;
    for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
      for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w) {
        const WeightShape& weight = model.shape().sublayers[i].weights[w];
        for (int64_t expert = 0; expert < weight.tensors(); ++expert) {
          const io::TensorEntry& tensor = model.tensor(i, w, static_cast<size_t>(expert));
          if (!seen.insert(tensor.name).second) continue;
          const WeightShape one = weight.of_expert(expert);
          if (!one.may_be_quantised() || one.cols % kGroup != 0 ||
              one.rows % (settings.value("bits", 4) == 3 ? 32 : 16) != 0) {
            made.tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
            made.bytes.push_back(bytes_of(model.checkpoint(), tensor));
            continue;
          }
          add_packed(made, method, tensor.name, one, settings, random);
        }
      }
    const fs::path path = folder_ / method;
    io::write_sharded_safetensors(
        path, made.tensors,
        [&](size_t index, int64_t first, std::span<std::byte> to) {
          const int64_t element = dtype_bytes(made.tensors[index].dtype);
          std::memcpy(to.data(), made.bytes[index].data() + first * element, to.size());
        },
        {.overwrite = true, .threads = 1});
    std::ifstream from(testing::fixture_model(fixture) + "/config.json");
    Json config = Json::parse(from);
    config["quantization_config"] = settings;
    std::ofstream(path / "config.json") << config.dump();
    return path;
  }

  void add_packed(Made& made, const std::string& method, const std::string& name,
                  const WeightShape& weight, const Json& settings, std::mt19937& random) {
    Matrix matrix{weight.rows, weight.cols, {}, {}, {}, {}};
    int bits = settings.value("bits", 4) == 5 ? 4 : settings.value("bits", 4);  // 5 is refused
    const Json rules = settings.value("dynamic", Json::object());
    for (const auto& rule : rules.items())
      if (rule.key().starts_with("+:") && name.find(kOther) != std::string::npos) bits = 8;
    const bool is_row = settings.value("group_size", 128) == -1;
    const int64_t groups = is_row ? 1 : matrix.cols / kGroup;
    for (int64_t col = 0; col < matrix.cols; ++col)
      matrix.group_of.push_back(is_row ? 0 : static_cast<int32_t>(col / kGroup));
    if (settings.value("desc_act", false))
      std::shuffle(matrix.group_of.begin(), matrix.group_of.end(), random);
    for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i)
      matrix.codes.push_back(
          static_cast<int>(bits == 8 ? 1 + random() % 255 : random() % (1u << bits)));
    for (int64_t i = 0; i < groups * matrix.rows; ++i) {
      matrix.zeros.push_back(bits == 8 ? 128 : static_cast<int>(1 + random() % ((1u << bits) - 1)));
      matrix.scales.push_back(
          f16_to_f32(f32_to_f16(0.01f + 0.001f * static_cast<float>(random() % 50))));
    }
    const std::string stem = name.substr(0, name.size() - std::string(".weight").size());
    const int64_t n = matrix.rows, k = matrix.cols;
    // AWQ's order: nibble i of a word is column kOrder[i] of eight.
    constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
    const bool is_awq = method == "awq";
    // Codes of a unit, one behind the other in its words: of 3 bits 32 of them in 3.
    const int unit = bits == 3 ? 32 : 32 / bits, words = bits == 3 ? 3 : 1;
    const auto put = [&](std::vector<uint32_t>& to, int64_t first, int64_t step, int place,
                         int value) {
      for (int bit = place * bits, i = 0; i < bits; ++bit, ++i)
        to[static_cast<size_t>(first + bit / 32 * step)] |= static_cast<uint32_t>(value >> i & 1)
                                                            << (bit % 32);
    };
    std::vector<uint32_t> codes(static_cast<size_t>(n * k * bits / 32)),
        zeros(static_cast<size_t>(groups * n * bits / 32));
    for (int64_t row = 0; row < n; row += is_awq ? 8 : 1)
      for (int64_t col = 0; col < k; col += is_awq ? 1 : unit)
        for (int i = 0; i < unit; ++i) {
          const int64_t r = is_awq ? row + kOrder[i] : row;
          const int64_t c = is_awq ? col : col + i;
          const int code = matrix.codes[static_cast<size_t>(r * k + c)];
          if (is_awq)
            put(codes, col * (n / 8) + row / 8, 1, i, code);
          else
            put(codes, col / unit * words * n + row, n, i, code);
        }
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t row = 0; row < n; row += unit)
        for (int i = 0; i < unit; ++i)
          put(zeros, g * (n * bits / 32) + row / unit * words, 1, i,
              matrix.zeros[static_cast<size_t>(g * n + row + (is_awq ? kOrder[i] : i))] -
                  (is_awq ? 0 : 1));
    std::vector<uint16_t> scales;
    for (float scale : matrix.scales) scales.push_back(f32_to_f16(scale));
    made.add(stem + ".qweight", DType::kI32,
             is_awq ? std::vector<int64_t>{k, n / 8} : std::vector<int64_t>{k * bits / 32, n},
             codes);
    made.add(stem + ".qzeros", DType::kI32, {groups, n * bits / 32}, zeros);
    made.add(stem + ".scales", DType::kF16, {groups, n}, scales);
    if (!is_awq) made.add(stem + ".g_idx", DType::kI32, {k}, matrix.group_of);
    matrices_[name] = std::move(matrix);
  }

  fs::path convert(const fs::path& from) {
    const BoundModel model = BoundModel::open(from);
    const fs::path to = from.string() + "-store";
    io::convert_checkpoint(model.checkpoint(), store_groups(model, std::nullopt),
                           {.destination = to, .overwrite = true});
    return to;
  }

  // `steps`: how far off values may be, in 8-bit steps of the largest of 32 columns.
  void expect_values(const fs::path& store, const char* format = "int4-g32", float steps = 0) {
    io::verify_store(store);
    const io::Checkpoint checkpoint = io::Checkpoint::open(store);
    ASSERT_FALSE(matrices_.empty());
    for (const auto& [name, matrix] : matrices_) {
      const io::TensorEntry* tensor = checkpoint.find(name);
      ASSERT_NE(tensor, nullptr) << name;
      if (format) {
        EXPECT_EQ(format_name(tensor->quantised), format);
      }
      const std::vector<std::byte> bytes = bytes_of(checkpoint, *tensor);
      for (int64_t row = 0; row < matrix.rows; ++row)
        for (int64_t col = 0; col < matrix.cols; ++col) {
          float most = 0;
          for (int64_t c = col / 32 * 32; c < col / 32 * 32 + 32; ++c)
            most = std::max(most, std::fabs(matrix.value(row, c)));
          ASSERT_NEAR(kernels::reference::quantised_value(tensor->quantised, bytes.data(),
                                                          matrix.cols, row, col),
                      matrix.value(row, col), steps * most / 127)
              << name << " [" << row << ", " << col << "]";
        }
    }
  }

  std::vector<int32_t> tokens(const fs::path& store) {
    const auto requests = testing::greedy_requests({{5, 6, 7, 8}}, 12);
    const auto engine = Engine::open(store, testing::options_for(requests));
    testing::ListSource source(requests);
    testing::CollectingSink sink;
    engine->generate(source, sink);
    return sink.answers[0].tokens;
  }

  fs::path folder_;
  std::map<std::string, Matrix> matrices_;
};

TEST_F(GptqAwq, GptqAndAwqAreRepackedExactly) {
  const fs::path gptq =
      convert(make("gptq", {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}}));
  expect_values(gptq);
  const fs::path awq = convert(make(
      "awq", {{"quant_method", "awq"}, {"bits", 4}, {"group_size", kGroup}, {"version", "gemm"}}));
  expect_values(awq);
  EXPECT_EQ(tokens(gptq).size(), 12u);
  EXPECT_EQ(tokens(gptq), tokens(awq));
}

TEST_F(GptqAwq, CodesOfTwoAndThreeBitsAreKept) {
  for (const int bits : {2, 3}) {
    SCOPED_TRACE(bits);
    Json settings{{"quant_method", "gptq"}, {"bits", bits}, {"group_size", kGroup}};
    expect_values(convert(make("gptq", settings)));
    settings["sym"] = false;
    settings["checkpoint_format"] = "gptq";
    settings["group_size"] = -1;
    expect_values(convert(make("gptq", settings)), nullptr);
    settings["desc_act"] = true;
    settings["group_size"] = kGroup;
    expect_values(convert(make("gptq", settings)), "int8-g32", 0.51f);
  }
}

// GPTQModel's rules: the first that matches from a module's name's beginning on.
TEST_F(GptqAwq, ModulesMayHaveSettingsOfTheirOwn) {
  Json settings{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}};
  settings["dynamic"] = {{"-:.*lm_head", Json::object()},
                         {std::string("+:.*\\.") + kOther, {{"bits", 8}, {"group_size", kGroup}}},
                         {".*", Json::object()}};
  const fs::path path = make("gptq", settings);
  expect_values(convert(path), nullptr);
  expect_runs_as_its_store(path, convert(path));
  const auto refusal = [&](const Json& rules) {
    std::ifstream from(path / "config.json");
    Json config = Json::parse(from);
    config["quantization_config"]["dynamic"] = rules;
    std::ofstream(path / "config.json") << config.dump();
    try {
      BoundModel::open(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      return std::string(error.what());
    }
    return std::string("it was opened");
  };
  EXPECT_NE(refusal({{"+:(", Json::object()}}).find("no regular expression"), std::string::npos);
  EXPECT_NE(refusal({{".*", {{"bits", 5}}}}).find("5 bits"), std::string::npos);
  EXPECT_NE(refusal({{".*", 5}}).find("not an object"), std::string::npos);
  EXPECT_NE(refusal({{".*", {{"rank", 5}}}}).find("rank"), std::string::npos);
  EXPECT_NE(refusal({{"-:.*fc1", Json::object()}}).find("leaves it plain"), std::string::npos);
  EXPECT_NE(refusal({{".*fc1", {{"bits", 8}}}}).find("qweight"), std::string::npos);
}

TEST_F(GptqAwq, OtherGptqSettingsKeepTheirValues) {
  const Json plain{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}};
  Json settings = plain;
  settings["group_size"] = -1;
  expect_values(convert(make("gptq", settings)), nullptr);  // groups by the matrix's columns
  settings = plain;
  settings["bits"] = 8;
  expect_values(convert(make("gptq", settings)), "int8-g32");
  settings["sym"] = false;  // zeros may be anything, so it is quantised anew
  expect_values(convert(make("gptq", settings)), "int8-g32", 0.51f);
  settings = plain;
  settings["desc_act"] = true;
  expect_values(convert(make("gptq", settings)), "int8-g32", 0.51f);
}

TEST_F(GptqAwq, RunsAsItLies) {
  for (const Json& settings :
       {Json{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}},
        Json{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}, {"desc_act", true}},
        Json{{"quant_method", "awq"}, {"bits", 4}, {"group_size", kGroup}, {"version", "gemm"}}}) {
    const fs::path path = make(settings["quant_method"], settings);
    expect_runs_as_its_store(path, convert(path));
  }
}

// Matrices that lie turned come some columns at a time, and are on disk whole or not at all.
TEST_F(GptqAwq, StreamsAsItLies) {
  std::mt19937 random(3);
  const Json gptq{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}};
  const auto with = [&](const char* key, const Json& value) {
    Json changed = gptq;
    changed[key] = value;
    return changed;
  };
  const Json awq{{"quant_method", "awq"}, {"bits", 4}, {"group_size", kGroup}, {"version", "gemm"}};
  for (const char* fixture : {kFixture, "qwen3-moe-tiny"})
    for (const Json& settings :
         {gptq, with("group_size", -1), with("bits", 8), with("desc_act", true),
          with("checkpoint_format", "gptq_v2"), with("bits", 3), with("bits", 2), awq}) {
      if (settings.value("bits", 4) == 3 && fixture != kFixture) continue;  // of 16 rows
      const fs::path path = make(settings["quant_method"], settings, fixture);
      SCOPED_TRACE(settings.dump() + " " + fixture);
      ASSERT_FALSE(matrices_.empty());
      EXPECT_GE(expect_streams_as_its_store(path, convert(path), 8, random), 2);
    }
}

TEST_F(GptqAwq, IsTheSameWordByWordAndCodeByCode) {
  const Json gptq{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}};
  Json eight = gptq, scattered = gptq;
  eight["bits"] = 8;
  scattered["desc_act"] = true;
  const Json awq{{"quant_method", "awq"}, {"bits", 4}, {"group_size", kGroup}, {"version", "gemm"}};
  for (const Json& settings : {gptq, eight, scattered, awq}) {
    SCOPED_TRACE(settings.dump());
    const BoundModel model = BoundModel::open(make(settings["quant_method"], settings));
    for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
      for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w)
        if (const ForeignMatrix* matrix = model.foreign(i, w)) {
          EXPECT_EQ(matrix->cut, ForeignMatrix::Cut::kColumns);
          expect_word_by_word(model, *matrix, model.tensor(i, w).name);
        }
  }
}

// Cut after it was opened: whoever waits for a piece is told which file.
TEST_F(GptqAwq, SaysWhereItEndsWhenItIsCutWhileItStreams) {
  const fs::path path =
      make("gptq", {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}});
  const auto requests = testing::greedy_requests({{5, 6, 7}}, 3);
  EngineOptions options = testing::options_for(requests);
  options.policy.emplace().weights = {0, 0, 1};
  const auto engine = Engine::open(path, options);
  engine->load();
  const BoundModel opened = BoundModel::open(path);
  for (const auto& file : opened.checkpoint().files())
    fs::resize_file(file.path, fs::file_size(file.path) / 2);
  testing::ListSource source(requests);
  testing::CollectingSink sink;
  try {
    engine->generate(source, sink);
    FAIL() << "half of the file is gone";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(std::string(error.what()).find("safetensors"), std::string::npos) << error.what();
  }
}

// What only columns that arrive show: the first one is told, with its tensor's name.
TEST_F(GptqAwq, RefusesIndicesOutOfOrderWhereverTheyArrive) {
  Json settings{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}, {"desc_act", true}};
  const fs::path path = make("gptq", settings);
  std::ifstream from(path / "config.json");
  Json config = Json::parse(from);
  config["quantization_config"]["desc_act"] = false;
  std::ofstream(path / "config.json") << config.dump();
  const auto requests = testing::greedy_requests({{5, 6, 7}}, 3);
  EngineOptions options = testing::options_for(requests);
  options.policy.emplace().weights = {0, 0, 1};
  try {
    run_path(path, options, requests);
    FAIL() << "columns are not in order";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(std::string(error.what()).find("desc_act"), std::string::npos) << error.what();
  }
}

TEST_F(GptqAwq, SaysWhatToDoWhereItDoesNotRun) {
  const auto refusal = [&](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what()) + " / " + error.mend();
    }
    return "nothing was refused";
  };
  const auto has = [](const std::string& text, const std::string& word) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  const auto with = [&](const Json& settings) {
    return refusal([&] { BoundModel::open(make("gptq", settings)); });
  };
  has(with({{"quant_method", "gptq"}, {"bits", 5}, {"group_size", 32}}), "5 bits");
  has(with({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 40}}), "group_size 40");
  has(with({{"quant_method", "aqlm"}}), "aqlm");
  Json settings{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}};
  for (const auto& [key, value] : {std::pair<const char*, Json>{"checkpoint_format", "marlin-2"},
                                   {"format", "bitblas"},
                                   {"pack_dtype", "int16"},
                                   {"rotation", "hadamard"},
                                   {"adapter", {{"rank", 8}}}}) {
    Json changed = settings;
    changed[key] = value;
    const std::string text = with(changed);
    const bool is_known = std::string(key) != "rotation";  // of others the value is named
    has(text, value.is_string() && is_known ? value.get<std::string>() : key);
  }
  Json marlin = settings;
  marlin["is_marlin_format"] = true;
  marlin["sym"] = false;
  has(with(marlin), "Marlin");
  // How the tool searched changes nothing of what is in the file; nor do modules left as they are.
  settings.update({{"damp_percent", 0.01},
                   {"true_sequential", true},
                   {"meta", {{"quantizer", "gptqmodel:2"}}},
                   {"dynamic", {{"-:.*lm_head.*", Json::object()}}}});
  has(with(settings), "nothing was refused");
  has(refusal([&] {
        BoundModel::open(make("awq", {{"quant_method", "awq"}, {"bits", 4}, {"apply_clip", true}}));
      }),
      "apply_clip");
}

}  // namespace
}  // namespace sluice::app
