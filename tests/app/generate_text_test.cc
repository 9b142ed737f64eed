// Tokens to text: pieces as they come, stop strings across tokens, refusals.
#include "src/app/generate_text.h"

#include <gtest/gtest.h>

#include "tests/engine/model_fixtures.h"

namespace sluice::app {
namespace {

using Ids = std::vector<int32_t>;
using testing::fixture_model;

class TextSinkTest : public ::testing::Test {
 protected:
  TextSinkTest() : tokenizer_(text::Tokenizer::load(fixture_model("stories260k"))) {
    listen(sink_);
  }

  void listen(TextSink& sink) {
    sink.on_text = [this](uint64_t, const std::string& piece) { pieces_.push_back(piece); };
    sink.on_result = [this](TextResult&& result) { results_.push_back(std::move(result)); };
  }

  GenerationRequest request(std::vector<std::string> stop = {}, int logprobs = -1) const {
    GenerationRequest out;
    out.id = 5;
    out.prompt = {1, 403};
    out.params.stop = std::move(stop);
    out.params.logprobs = logprobs;
    return out;
  }

  // Feeds tokens until the sink has enough; returns how many it took.
  static size_t feed(TextSink& sink, const Ids& ids) {
    for (size_t i = 0; i < ids.size(); ++i)
      if (!sink.on_token(5, {ids[i], -0.5F, {{ids[i], -0.5F}}})) return i + 1;
    return ids.size();
  }

  Ids encode(const std::string& text) const {
    return tokenizer_->encode(text, text::AddSpecial::kNo);
  }

  std::string joined() const {
    std::string out;
    for (const std::string& piece : pieces_) out += piece;
    return out;
  }

  std::unique_ptr<text::Tokenizer> tokenizer_;
  TextSink sink_{tokenizer_.get()};
  std::vector<std::string> pieces_;
  std::vector<TextResult> results_;
};

TEST_F(TextSinkTest, TextContinuesThePromptPieceByPiece) {
  sink_.expect(request());
  const Ids ids = encode("upon a time, Zoë saw a 🐶.");
  EXPECT_EQ(feed(sink_, ids), ids.size());
  EXPECT_TRUE(results_.empty());
  sink_.on_finish(5, FinishReason::kLength);
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].id, 5u);
  EXPECT_EQ(results_[0].text, " upon a time, Zoë saw a 🐶.");
  EXPECT_EQ(results_[0].text, joined());
  EXPECT_EQ(results_[0].token_ids, ids);
  EXPECT_EQ(results_[0].prompt_ids, (Ids{1, 403}));
  EXPECT_EQ(results_[0].finish_reason, "length");
  EXPECT_EQ(results_[0].refused, "");
  EXPECT_TRUE(results_[0].choices.empty()) << "not asked for";
}

TEST_F(TextSinkTest, NoPieceIsPartOfACharacter) {
  sink_.expect(request());
  feed(sink_, encode("🐶🐶é日"));
  sink_.on_finish(5, FinishReason::kLength);
  ASSERT_GE(pieces_.size(), 4u);
  for (const std::string& piece : pieces_) {
    EXPECT_FALSE(piece.empty());
    EXPECT_NE(static_cast<unsigned char>(piece.front()) & 0xC0, 0x80) << piece;
  }
  EXPECT_EQ(joined(), " 🐶🐶é日");
}

TEST_F(TextSinkTest, ACharacterThatNeverEndsBecomesAReplacement) {
  Ids ids = encode("a🐶");
  ids.pop_back();
  sink_.expect(request());
  feed(sink_, ids);
  sink_.on_finish(5, FinishReason::kLength);
  EXPECT_EQ(results_.at(0).text.rfind(" a\uFFFD", 0), 0u) << results_[0].text;
}

TEST_F(TextSinkTest, AStopStringAcrossTokensEndsTheTextBeforeIt) {
  const Ids ids = encode("there was a little girl named Lily");
  sink_.expect(request({"zebra", "e girl n"}));
  EXPECT_LT(feed(sink_, ids), ids.size());
  sink_.on_finish(5, FinishReason::kStop);
  EXPECT_EQ(results_.at(0).text, " there was a littl");
  EXPECT_EQ(joined(), " there was a littl") << "held back until decided";
  EXPECT_EQ(results_[0].finish_reason, "stop");
}

TEST_F(TextSinkTest, TextHeldForAStopStringThatNeverComesIsGivenAtTheEnd) {
  const Ids ids = encode("a little girl");
  sink_.expect(request({"girls"}));
  EXPECT_EQ(feed(sink_, ids), ids.size());
  EXPECT_EQ(joined(), " a little ");
  sink_.on_finish(5, FinishReason::kLength);
  EXPECT_EQ(results_.at(0).text, " a little girl");
  EXPECT_EQ(joined(), " a little girl");
}

TEST_F(TextSinkTest, ChoicesAreKeptWhenLogprobsAreAskedFor) {
  sink_.expect(request({}, 0));
  feed(sink_, {403, 407});
  sink_.on_finish(5, FinishReason::kLength);
  ASSERT_EQ(results_.at(0).choices.size(), 2u);
  EXPECT_EQ(results_[0].choices[1].token, 407);
  EXPECT_EQ(results_[0].choices[1].logprob, -0.5F);
}

TEST_F(TextSinkTest, WithoutATokenizerThereAreIdsOnly) {
  TextSink sink(nullptr);
  listen(sink);
  sink.expect(request({"stop"}));
  EXPECT_EQ(feed(sink, {9, 8, 7}), 3u);
  sink.on_finish(5, FinishReason::kCancelled);
  EXPECT_EQ(results_.at(0).token_ids, (Ids{9, 8, 7}));
  EXPECT_EQ(results_[0].text, "");
  EXPECT_EQ(results_[0].finish_reason, "cancelled");
  EXPECT_TRUE(pieces_.empty());
}

TEST_F(TextSinkTest, ARefusalIsAResultWithItsReason) {
  sink_.expect(request());
  sink_.on_refused(5, "too long");
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].id, 5u);
  EXPECT_EQ(results_[0].refused, "too long");
  EXPECT_EQ(results_[0].prompt_ids, (Ids{1, 403}));
  EXPECT_EQ(results_[0].finish_reason, "");
  sink_.on_finish(5, FinishReason::kStop);  // unknown by now: nothing more is told
  EXPECT_EQ(results_.size(), 1u);
}

TEST_F(TextSinkTest, SequencesDoNotMix) {
  GenerationRequest first = request(), second = request();
  second.id = 6;
  sink_.expect(first);
  sink_.expect(second);
  for (int32_t id : encode("one")) sink_.on_token(5, {id});
  for (int32_t id : encode("two")) sink_.on_token(6, {id});
  sink_.on_finish(6, FinishReason::kStop);
  sink_.on_finish(5, FinishReason::kStop);
  EXPECT_EQ(results_.at(0).text, " two");
  EXPECT_EQ(results_.at(1).text, " one");
}

TEST_F(TextSinkTest, TheSourceGivesRequestsInOrderAndAnnouncesThem) {
  GenerationRequest first = request(), second = request();
  second.id = 6;
  PromptSource source({first, second}, sink_);
  EXPECT_EQ(source.next()->id, 5u);
  EXPECT_TRUE(sink_.on_token(5, {403}));
  EXPECT_THROW(sink_.on_token(6, {403}), std::out_of_range) << "not announced yet";
  EXPECT_EQ(source.next()->id, 6u);
  EXPECT_TRUE(sink_.on_token(6, {403}));
  EXPECT_FALSE(source.next().has_value());
  EXPECT_FALSE(source.next().has_value());
}

TEST(Workload, AddsUpLengths) {
  policy::Workload workload;
  add_to_workload(workload, 10, 5);
  EXPECT_EQ(workload.sequences, 1);
  EXPECT_EQ(workload.max_prompt_tokens, 10);
  EXPECT_EQ(workload.max_total_tokens, 15);
  add_to_workload(workload, 3, 40);
  EXPECT_EQ(workload.sequences, 2);
  EXPECT_EQ(workload.max_prompt_tokens, 10);
  EXPECT_EQ(workload.max_total_tokens, 43);
  EXPECT_EQ(workload.total_tokens, 58);
}

}  // namespace
}  // namespace sluice::app
