#pragma once
// Checkpoints that other tools have packed, run as they lie, against the store that convert makes
// of them: the same bytes, so the same bits.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "src/engine/stores/foreign_import.h"
#include "src/engine/stores/panel_quantiser.h"
#include "tests/app/store_values.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {

inline std::map<uint64_t, testing::Answer> run_path(
    const std::filesystem::path& path, EngineOptions options,
    const std::vector<GenerationRequest>& requests) {
  const auto engine = Engine::open(path, std::move(options));
  testing::ListSource source(requests);
  testing::CollectingSink sink;
  engine->generate(source, sink);
  return sink.answers;
}

/// A decoder that does not say where codes lie.
class CodeByCode final : public ForeignDecoder {
 public:
  explicit CodeByCode(std::unique_ptr<ForeignDecoder> of) : of_(std::move(of)) {}
  void values(int64_t row, float* out) const override { of_->values(row, out); }
  bool codes(int64_t row, int64_t group, uint8_t* codes, float& scale, float& zero) const override {
    return of_->codes(row, group, codes, scale, zero);
  }

 private:
  std::unique_ptr<ForeignDecoder> of_;
};

/// The matrix as the fastest way makes it, whole and in pieces of any size, is what its codes make.
inline void expect_word_by_word(const BoundModel& model, const ForeignMatrix& matrix,
                                const std::string& name) {
  std::vector<std::vector<std::byte>> bytes;
  for (const io::TensorEntry* part : matrix.parts)
    bytes.push_back(bytes_of(model.checkpoint(), *part));
  const ForeignBytes parts(bytes.begin(), bytes.end());
  ForeignMatrix slow = matrix;
  slow.decoder = [&matrix](const ForeignBytes& of, const ForeignRun& run) {
    return std::make_unique<CodeByCode>(matrix.decoder(of, run));
  };
  const io::PanelQuantiser quantise = panel_quantiser(kernels::RangeSearch::kClip);
  const auto size = static_cast<size_t>(imported_bytes(matrix, matrix.format));
  std::vector<std::byte> expected(size), whole(size);
  import_matrix(name, slow, matrix.format, quantise, 1, parts, expected);
  import_matrix(name, matrix, matrix.format, quantise, 2, parts, whole);
  EXPECT_EQ(whole, expected) << name;
  for (const int64_t most : {int64_t{1}, smallest_piece_bytes(matrix) + 9000, int64_t{1} << 30}) {
    std::vector<std::byte> made(size);
    for (const ForeignRun& piece : pieces_of(matrix, 0, matrix.rows, most)) {
      const ForeignRun run = matrix.run_of(piece);
      EXPECT_TRUE(most == 1 || window_bytes(matrix, run) <= most);
      std::span<std::byte> to = made;
      if (matrix.cut != ForeignMatrix::Cut::kColumns)
        to = to.subspan(static_cast<size_t>(imported_row_bytes(matrix, piece.first_row)),
                        static_cast<size_t>(imported_row_bytes(matrix, piece.rows)));
      import_piece(name, matrix, piece, quantise, 1, matrix.within(parts, run), to);
    }
    EXPECT_EQ(made, expected) << name << " in pieces of " << most;
  }
}

/// On the CPU alone, and in three places beside an emulated device.
inline void expect_runs_as_its_store(const std::filesystem::path& path,
                                     const std::filesystem::path& store) {
  auto requests = testing::greedy_requests({{5, 6, 7, 8}, {9, 10, 11}}, 6);
  requests[1].score_prompt = true;  // its logits; the other one's tokens
  for (const double device : {-1.0, 1.0, 0.4, 0.0}) {
    EngineOptions options = testing::options_for(requests);
    if (device >= 0) {
      options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
      options.policy.emplace();
      options.policy->weights = {device, 1 - device, 0};
      options.policy->inplace_host_fraction = (1 - device) / 2;
    }
    const auto expected = run_path(store, options, requests);
    const auto actual = run_path(path, options, requests);
    for (const auto& [id, answer] : expected) {
      EXPECT_EQ(answer.tokens.size(), id == 0 ? 6u : 0u);
      EXPECT_EQ(answer.logits.empty(), id == 0);
      EXPECT_EQ(actual.at(id).tokens, answer.tokens) << "device " << device;
      EXPECT_EQ(actual.at(id).logits, answer.logits) << "device " << device;
    }
  }
}

/// Some or all of it on disk, on the CPU alone and through host memory to an emulated device: what
/// arrives as another tool has it becomes what the store holds, so the same policy gives the same
/// bits. Shares are drawn; returns how many rounds had anything repacked as it came.
inline int expect_streams_as_its_store(const std::filesystem::path& path,
                                       const std::filesystem::path& store, int rounds,
                                       std::mt19937& random) {
  const auto share = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  int arriving = 0;
  for (int round = 0; round < rounds; ++round) {
    auto requests = testing::greedy_requests({{5, 6, 7, 8}, {9, 10, 11}, {4}}, 5);
    requests[1].score_prompt = true;
    EngineOptions options = testing::options_for(requests);
    options.policy.emplace();
    policy::Policy& policy = *options.policy;
    const double disk = round < 2 ? 1 : share();
    policy.weights = {1 - disk, 0, disk};
    policy.micro_batch_sequences = 1 + round % 2;
    policy.micro_batches = 1 + round % 3;
    policy.micro_batch_tokens = 1 + round;
    if (round % 2 == 1) {  // through host memory to a device
      options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
      const double host = (1 - disk) * share();
      policy.weights = {1 - disk - host, host, disk};
      policy.inplace_host_fraction = host / 2;
    }
    SCOPED_TRACE(::testing::Message() << path.filename() << ", round " << round);
    const auto engine = Engine::open(path, options);
    arriving += engine->plan().arrival_slot_bytes > 0;
    EXPECT_LE(engine->plan().arrival_slot_bytes, policy::kArrivalBytes);
    const auto expected = run_path(store, options, requests);
    testing::ListSource source(requests);
    testing::CollectingSink sink;
    engine->generate(source, sink);
    EXPECT_EQ(expected.size(), requests.size());
    for (const auto& [id, answer] : expected) {
      EXPECT_EQ(sink.answers.at(id).tokens, answer.tokens);
      EXPECT_EQ(sink.answers.at(id).logits, answer.logits);
    }
  }
  return arriving;
}

}  // namespace sluice::app
