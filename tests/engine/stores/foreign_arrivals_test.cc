// Rows that other tools have packed as they arrive: whoever asks, in whatever order and however
// many at once, they are the rows of the matrix that was imported whole.
#include "src/engine/stores/foreign_arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <latch>
#include <random>
#include <thread>

#include "io/files/input_file.h"
#include "src/base/bytes.h"
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

class Arrivals : public ::testing::TestWithParam<const char*> {
 protected:
  Arrivals()
      : path_(fs::path(SLUICE_FIXTURES) / GetParam()),
        model_(BoundModel::open(path_)),
        files_(io::make_file_engine({})),
        memory_("memory", int64_t{1} << 30) {
    for (size_t i = 0; i < model_.shape().sublayers.size(); ++i)
      for (size_t w = 0; w < model_.shape().sublayers[i].weights.size(); ++w)
        if (model_.shape().sublayers[i].weights[w].kind == WeightKind::kMatrix)
          if (const ForeignMatrix* matrix = model_.foreign(i, w)) take(i, w, *matrix);
  }

  void take(size_t sublayer, size_t weight, const ForeignMatrix& matrix) {
    std::vector<std::vector<std::byte>> bytes;
    for (const io::TensorEntry* part : matrix.parts) {
      bytes.emplace_back(static_cast<size_t>(part->bytes));
      io::InputFile(model_.checkpoint().files()[static_cast<size_t>(part->file_index)].path)
          .read(part->offset, bytes.back(), "a part");
    }
    wholes_.push_back({&model_.tensor(sublayer, weight).name, &matrix, {}});
    Whole& whole = wholes_.back();
    whole.made.resize(static_cast<size_t>(imported_bytes(matrix, matrix.format)));
    import_matrix(*whole.name, matrix, matrix.format, panel_quantiser(kernels::RangeSearch::kClip),
                  1, ForeignBytes(bytes.begin(), bytes.end()), whole.made);
    const int64_t window = window_bytes(matrix, matrix.run_of(matrix.whole()));
    slot_bytes_ = std::max(slot_bytes_, window + io::kDirectAlignment);
    least_slot_bytes_ = std::max(least_slot_bytes_, smallest_piece_bytes(matrix));
  }

  // In slots that all fit, or of which a matrix takes many.
  std::unique_ptr<ForeignArrivals> make(int64_t slots, int threads, bool in_pieces = false) {
    const int64_t bytes = in_pieces ? round_up(least_slot_bytes_, io::kDirectAlignment)
                                    : round_up(slot_bytes_, io::kDirectAlignment);
    return std::make_unique<ForeignArrivals>(*files_, memory_.allocate(slots * bytes, "slots"),
                                             bytes, threads);
  }

  std::vector<io::FileId> open() {
    std::vector<io::FileId> out;
    for (const auto& file : model_.checkpoint().files())
      out.push_back(files_->open_for_read(file.path.string()));
    return out;
  }
  void close(const std::vector<io::FileId>& files) {
    for (const io::FileId file : files) files_->close(file);
  }

  // Some rows from a panel on, to the end or to another panel; at times all, or always where rows
  // do not lie together.
  static std::pair<int64_t, int64_t> drawn_rows(const ForeignMatrix& matrix, std::mt19937& random) {
    if (matrix.cut == ForeignMatrix::Cut::kColumns) return {0, matrix.rows};
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
  int64_t least_slot_bytes_ = 0;
};

TEST_P(Arrivals, AreTheRowsOfTheWholeMatrix) {
  ASSERT_GE(wholes_.size(), 3u);
  const std::vector<io::FileId> files = open();
  for (const int64_t slots : {1, 2, 5}) {
    const auto arrivals = make(slots, static_cast<int>(slots), slots == 2);
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
          arrivals->read({whole.name, whole.matrix, first, rows, files, made[i]},
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
  close(files);
}

// An error is that of the rows that were asked for; others arrive.
TEST_P(Arrivals, FailAloneWhereTheFileEnds) {
  std::string pattern = ::testing::TempDir() + "/sluice_arrivals_XXXXXX";
  const fs::path folder = mkdtemp(pattern.data());
  const fs::path whole_file = model_.checkpoint().files().front().path;
  const fs::path cut = folder / "cut.weights";
  ASSERT_EQ(model_.checkpoint().files().size(), 1u);
  fs::copy_file(whole_file, cut);
  const Whole* last = &wholes_.front();
  const Whole* first = last;
  const auto end_of = [](const Whole* whole) {  // of its last part
    int64_t end = 0;
    for (const io::TensorEntry* part : whole->matrix->parts)
      end = std::max(end, part->offset + part->bytes);
    return end;
  };
  for (const Whole& whole : wholes_) {
    if (end_of(&whole) > end_of(last)) last = &whole;
    if (end_of(&whole) < end_of(first)) first = &whole;
  }
  fs::resize_file(cut, static_cast<uintmax_t>(end_of(last) - 1));
  const io::FileId file = files_->open_for_read(cut.string());
  {
    const auto arrivals = make(1, 1);
    for (const Whole* whole : {last, first, last, first}) {
      const std::array files{file};
      std::vector<std::byte> made(whole->made.size());
      std::exception_ptr found;
      std::latch done(1);
      arrivals->read({whole->name, whole->matrix, 0, whole->matrix->rows, files, made},
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
        EXPECT_NE(std::string(error.what()).find("cut.weights"), std::string::npos) << error.what();
      }
    }
  }
  files_->close(file);
  fs::remove_all(folder);
}

TEST_P(Arrivals, AreAllThereBeforeItGoes) {
  const std::vector<io::FileId> files = open();
  std::atomic<size_t> done = 0;
  std::vector<std::vector<std::byte>> made;
  for (const Whole& whole : wholes_) made.emplace_back(whole.made.size());
  {
    const auto arrivals = make(2, 1, true);
    for (size_t i = 0; i < wholes_.size(); ++i)
      arrivals->read(
          {wholes_[i].name, wholes_[i].matrix, 0, wholes_[i].matrix->rows, files, made[i]},
          [&done](const std::exception_ptr&) { ++done; });
  }
  EXPECT_EQ(done, wholes_.size());
  for (size_t i = 0; i < wholes_.size(); ++i) EXPECT_EQ(made[i], wholes_[i].made);
  close(files);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Arrivals,
                         ::testing::Values("gguf/mixed.gguf", "foreign/ct-int4-asymmetric",
                                           "foreign/bnb-nf4-double", "foreign/bnb-fp4",
                                           "foreign/fp8-block-odd", "models/gpt-oss-mxfp4",
                                           "models/gpt2-odd", "models/gpt-oss-tiny",
                                           "models/llama4-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace sluice
