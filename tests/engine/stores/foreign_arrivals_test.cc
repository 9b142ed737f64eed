// Rows of GGUF files as they arrive: whoever asks, in whatever order and however many at once, they
// are the rows of the matrix that was imported whole.
#include "src/engine/stores/foreign_arrivals.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <latch>
#include <random>
#include <thread>

#include "src/base/error.h"
#include "src/engine/stores/foreign_import.h"
#include "src/engine/stores/panel_quantiser.h"
#include "src/model/bound_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Whole {
  const std::string* name;
  const ForeignMatrix* matrix;
  std::vector<std::byte> made;
};

class Arrivals : public ::testing::Test {
 protected:
  Arrivals()
      : path_(fs::path(SLUICE_FIXTURES) / "gguf" / "mixed.gguf"),
        model_(BoundModel::open(path_)),
        files_(io::make_file_engine({})),
        memory_("memory", int64_t{1} << 30) {
    for (size_t i = 0; i < model_.shape().sublayers.size(); ++i)
      for (size_t w = 0; w < model_.shape().sublayers[i].weights.size(); ++w)
        if (model_.shape().sublayers[i].weights[w].kind == WeightKind::kMatrix)
          if (const ForeignMatrix* matrix = model_.foreign(i, w)) take(i, w, *matrix);
  }

  void take(size_t sublayer, size_t weight, const ForeignMatrix& matrix) {
    const io::TensorEntry& part = *matrix.parts.front();
    std::ifstream file(path_, std::ios::binary);
    std::vector<std::byte> bytes(static_cast<size_t>(part.bytes));
    file.seekg(part.offset);
    file.read(reinterpret_cast<char*>(bytes.data()), part.bytes);
    wholes_.push_back({&model_.tensor(sublayer, weight).name, &matrix, {}});
    Whole& whole = wholes_.back();
    whole.made.resize(static_cast<size_t>(imported_bytes(matrix, matrix.format)));
    import_matrix(*whole.name, matrix, matrix.format, panel_quantiser(kernels::RangeSearch::kClip),
                  1, {bytes}, whole.made);
    const int64_t window = ForeignArrivals::window_bytes(matrix, 0, matrix.rows);
    slot_bytes_ = std::max(slot_bytes_, window + io::kDirectAlignment);
  }

  std::unique_ptr<ForeignArrivals> make(int64_t slots, int threads) {
    return std::make_unique<ForeignArrivals>(
        *files_, memory_.allocate(slots * slot_bytes_, "slots"), slot_bytes_, threads);
  }

  // Some rows from a panel on, to the end or to another panel; at times all.
  static std::pair<int64_t, int64_t> drawn_rows(const ForeignMatrix& matrix, std::mt19937& random) {
    const int64_t panels = (matrix.rows + 15) / 16;
    const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(panels));
    const auto count = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(panels - first));
    return {16 * first, std::min(16 * count, matrix.rows - 16 * first)};
  }

  fs::path path_;
  BoundModel model_;
  std::unique_ptr<io::FileEngine> files_;
  Arena memory_;
  std::vector<Whole> wholes_;
  int64_t slot_bytes_ = 0;
};

TEST_F(Arrivals, AreTheRowsOfTheWholeMatrix) {
  ASSERT_GT(wholes_.size(), 8u);
  const io::FileId file = files_->open_for_read(path_.string());
  for (const int64_t slots : {1, 2, 5}) {
    const auto arrivals = make(slots, static_cast<int>(slots));
    const auto ask = [&](unsigned seed) {
      std::mt19937 random(seed);
      for (int round = 0; round < 12; ++round) {
        constexpr size_t kAtOnce = 4;
        std::vector<std::vector<std::byte>> made(kAtOnce);
        std::vector<std::exception_ptr> errors(kAtOnce);
        std::vector<std::span<const std::byte>> expected(kAtOnce);
        std::latch done(kAtOnce);
        for (size_t i = 0; i < kAtOnce; ++i) {
          const Whole& whole = wholes_[random() % wholes_.size()];
          const auto [first, rows] = drawn_rows(*whole.matrix, random);
          const int64_t before = imported_row_bytes(*whole.matrix, first);
          made[i].resize(static_cast<size_t>(imported_row_bytes(*whole.matrix, rows)));
          expected[i] = std::span(whole.made).subspan(static_cast<size_t>(before), made[i].size());
          arrivals->read({whole.name, whole.matrix, first, rows, file, made[i]},
                         [&errors, &done, i](std::exception_ptr error) {
                           errors[i] = std::move(error);
                           done.count_down();
                         });
        }
        done.wait();
        for (size_t i = 0; i < kAtOnce; ++i) {
          ASSERT_FALSE(errors[i]);
          ASSERT_TRUE(std::equal(made[i].begin(), made[i].end(), expected[i].begin())) << seed;
        }
      }
    };
    std::vector<std::jthread> askers;
    for (unsigned seed = 1; seed <= 3; ++seed) askers.emplace_back(ask, seed);
  }
  files_->close(file);
}

// An error is that of the rows that were asked for; others arrive.
TEST_F(Arrivals, FailAloneWhereTheFileEnds) {
  std::string pattern = ::testing::TempDir() + "/sluice_arrivals_XXXXXX";
  const fs::path folder = mkdtemp(pattern.data());
  const fs::path cut = folder / "cut.gguf";
  fs::copy_file(path_, cut);
  const Whole* last = &wholes_.front();
  const Whole* first = last;
  const auto begin = [](const Whole* whole) { return whole->matrix->parts.front()->offset; };
  for (const Whole& whole : wholes_) {
    if (begin(&whole) > begin(last)) last = &whole;
    if (begin(&whole) < begin(first)) first = &whole;
  }
  fs::resize_file(cut, static_cast<uintmax_t>(begin(last) + 1));
  const io::FileId file = files_->open_for_read(cut.string());
  {
    const auto arrivals = make(1, 1);
    for (const Whole* whole : {last, first, last, first}) {
      std::vector<std::byte> made(whole->made.size());
      std::exception_ptr found;
      std::latch done(1);
      arrivals->read({whole->name, whole->matrix, 0, whole->matrix->rows, file, made},
                     [&](std::exception_ptr error) {
                       found = std::move(error);
                       done.count_down();
                     });
      done.wait();
      if (whole == first) {
        EXPECT_FALSE(found);
        EXPECT_EQ(made, whole->made);
        continue;
      }
      ASSERT_TRUE(found);
      try {
        std::rethrow_exception(found);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kFile);
        EXPECT_NE(std::string(error.what()).find("cut.gguf"), std::string::npos) << error.what();
      }
    }
  }
  files_->close(file);
  fs::remove_all(folder);
}

TEST_F(Arrivals, AreAllThereBeforeItGoes) {
  const io::FileId file = files_->open_for_read(path_.string());
  std::atomic<size_t> done = 0;
  std::vector<std::vector<std::byte>> made;
  for (const Whole& whole : wholes_) made.emplace_back(whole.made.size());
  {
    const auto arrivals = make(2, 1);
    for (size_t i = 0; i < wholes_.size(); ++i)
      arrivals->read(
          {wholes_[i].name, wholes_[i].matrix, 0, wholes_[i].matrix->rows, file, made[i]},
          [&done](const std::exception_ptr&) { ++done; });
  }
  EXPECT_EQ(done, wholes_.size());
  for (size_t i = 0; i < wholes_.size(); ++i) EXPECT_EQ(made[i], wholes_[i].made);
  files_->close(file);
}

}  // namespace
}  // namespace sluice
