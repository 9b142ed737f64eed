// Importance matrices of llama.cpp as calibrations.
#include "src/app/imatrix_calibration.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/app/quantisation.h"
#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

io::Imatrix stories_imatrix() {
  return io::read_imatrix(std::string(SLUICE_FIXTURES) + "/imatrix/stories260k.dat");
}

void refused(const io::Imatrix& imatrix, const BoundModel& model,
             std::initializer_list<const char*> words) {
  try {
    calibration_of(imatrix, model, "i.dat");
    FAIL() << *words.begin();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    for (const char* word : words)
      EXPECT_NE(error.text().find(word), std::string::npos) << word << ": " << error.text();
  }
}

TEST(ImatrixCalibration, HasEveryMatrixOfTheModel) {
  const BoundModel model = BoundModel::open(testing::fixture_model("stories260k"));
  const io::Imatrix imatrix = stories_imatrix();
  const Calibration calibration = calibration_of(imatrix, model, "i.dat");
  EXPECT_EQ(calibration.size(), 35u);
  for (const auto& [place, inputs] : calibration) {
    const WeightShape& weight = model.shape().sublayers[place.sublayer].weights[place.weight];
    const auto& squares = imatrix.at(weight.gguf.name).squares;
    ASSERT_EQ(inputs.square.size(), squares.size());
    for (size_t i = 0; i < squares.size(); ++i) {
      EXPECT_NEAR(inputs.mean_square(i), squares[i], 1e-6 * squares[i]);
      EXPECT_NEAR(inputs.mean_magnitude(i), std::sqrt(squares[i]), 1e-6);
    }
  }
}

TEST(ImatrixCalibration, OfAnotherModelIsRefused) {
  const BoundModel model = BoundModel::open(testing::fixture_model("stories260k"));
  io::Imatrix imatrix = stories_imatrix();
  imatrix.erase("blk.2.attn_k.weight");
  refused(imatrix, model, {"i.dat", "nothing of blk.2.attn_k.weight"});
  imatrix = stories_imatrix();
  imatrix["blk.3.ffn_down.weight"].squares.push_back(1);
  refused(imatrix, model, {"blk.3.ffn_down.weight has 173 values", "172 columns"});
  imatrix = stories_imatrix();
  imatrix["blk.9.attn_q.weight"] = imatrix["blk.0.attn_q.weight"];
  refused(imatrix, model, {"blk.9.attn_q.weight", "5 layers"});
  refused({{"model.embed", {{1}, 1}}}, model, {"it begins with model.embed"});
  refused(stories_imatrix(), BoundModel::open(testing::fixture_model("llama-tiny-gqa")), {"i.dat"});
}

TEST(ImatrixCalibration, ExpertsHaveARowEach) {
  const BoundModel model = BoundModel::open(testing::fixture_model("mixtral-tiny"));
  io::Imatrix imatrix;
  for (const SublayerShape& sublayer : model.shape().sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (!weight.may_be_quantised() || sublayer.kind == SublayerKind::kHead) continue;
      std::string name = weight.gguf.name;
      if (const size_t at = name.find(".{e}"); at != std::string::npos) name.erase(at, 4);
      io::ImatrixEntry& entry = imatrix[name];
      entry.experts = weight.tensors();
      for (int64_t i = 0; i < weight.tensors() * weight.cols; ++i)
        entry.squares.push_back(static_cast<float>(i / weight.cols));  // the expert's number
    }
  const Calibration calibration = calibration_of(imatrix, model, "i.gguf");
  int64_t of_experts = 0;
  for (const auto& [place, inputs] : calibration) {
    const WeightShape& weight = model.shape().sublayers[place.sublayer].weights[place.weight];
    if (weight.experts == 0) continue;
    ++of_experts;
    EXPECT_GT(place.expert, 0u) << "no token went to the first";
    for (size_t i = 0; i < inputs.square.size(); ++i)
      EXPECT_NEAR(inputs.mean_square(i), static_cast<double>(place.expert), 1e-6);
  }
  EXPECT_GT(of_experts, 0);
}

TEST(ImatrixCalibration, ChoosesFormatsAndScales) {
  const BoundModel model = BoundModel::open(testing::fixture_model("stories260k"));
  for (const bool mixed : {false, true}) {
    QuantisationRequest request;
    if (mixed)
      request.bits = 9;
    else
      request.to = parse_weight_format("int4-g32");
    request.inputs = calibration_of(stories_imatrix(), model, "i.dat");
    Quantisation with(model, request);
    request.inputs.reset();
    Quantisation without(model, request);
    EXPECT_NE(with.name(), without.name());
    size_t scaled = 0;
    for (const io::StoreGroup& group : with.groups())
      for (const io::StoreTensor& tensor : group.tensors) scaled += !tensor.column_scale.empty();
    EXPECT_GT(scaled, 0u);
  }
}

}  // namespace
}  // namespace sluice::app
