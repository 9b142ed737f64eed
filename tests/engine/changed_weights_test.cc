// Somebody writes to a model's files while it runs: what was computed of two states is told to
// nobody.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "tests/engine/model_fixtures.h"
#include "tests/temporary_folder.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;

// Writes other bytes into the last quarter of a file; its length stays.
void overwrite_the_end(const fs::path& path) {
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(bytes - bytes / 4);
  file << std::string(static_cast<size_t>(bytes / 4), '\x3c');
}

// Calls `act` at a request's token number `at`.
class ActingSink final : public GenerationSink {
 public:
  ActingSink(size_t at, std::function<void()> act) : at_(at), act_(std::move(act)) {}
  bool on_token(uint64_t, const sampling::Choice& choice) override {
    tokens.push_back(choice.token);
    if (tokens.size() == at_) act_();
    return true;
  }
  void on_finish(uint64_t, FinishReason reason) override { finish = reason; }
  void on_refused(uint64_t, const std::string&) override {}

  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;

 private:
  size_t at_;
  std::function<void()> act_;
};

class ChangedWeights : public ::testing::Test {
 protected:
  ChangedWeights() {
    fs::copy(fixture_model("stories260k"), folder_.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      if (entry.path().extension() == ".safetensors") weights_ = entry.path();
    EXPECT_FALSE(weights_.empty());
  }
  std::unique_ptr<Engine> open(int64_t budget) const {
    EngineOptions options = options_for(requests_);
    options.memory_budget_bytes = budget;
    return Engine::open(folder_.path(), options);
  }

  const std::vector<GenerationRequest> requests_ = greedy_requests({{1, 403, 407}}, 30);
  TemporaryFolder folder_;
  fs::path weights_;
};

TEST_F(ChangedWeights, EndARunThatReadsThemBeforeTheNextTokenIsTold) {
  const auto engine = open(720 * kKiB);
  ASSERT_GT(engine->plan().streamed_weight_bytes, 0);
  ListSource source(requests_);
  ActingSink sink(5, [&] { overwrite_the_end(weights_); });
  try {
    engine->generate(source, sink);
    FAIL() << "a run went on over changed weights";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(error.text().find("was written to"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find(weights_.filename().string()), std::string::npos) << error.text();
  }
  EXPECT_EQ(sink.tokens.size(), 5u);
  EXPECT_EQ(sink.finish, FinishReason::kCancelled);
}

TEST_F(ChangedWeights, AreNotMissedWhereAnotherFileTakesTheirName) {
  const auto expected = run_all("stories260k", options_for(requests_), requests_).at(0).tokens;
  const auto engine = open(720 * kKiB);
  ListSource source(requests_);
  ActingSink sink(5, [&] {
    const fs::path beside = folder_.file("new.safetensors");
    fs::copy_file(weights_, beside);
    overwrite_the_end(beside);
    fs::rename(beside, weights_);
  });
  engine->generate(source, sink);
  EXPECT_EQ(sink.tokens, expected);
}

TEST_F(ChangedWeights, DoNotMatterToARunThatHasAllInMemory) {
  const auto expected = run_all("stories260k", options_for(requests_), requests_).at(0).tokens;
  const auto engine = open(64 * kMiB);
  ASSERT_EQ(engine->plan().streamed_weight_bytes, 0);
  ListSource source(requests_);
  ActingSink sink(5, [&] { overwrite_the_end(weights_); });
  engine->generate(source, sink);
  EXPECT_EQ(sink.tokens, expected);
}

TEST_F(ChangedWeights, AreRefusedBetweenOpeningAndLoading) {
  for (const bool after_planning : {false, true}) {
    const auto model = std::make_shared<const BoundModel>(BoundModel::open(folder_.path()));
    EngineOptions options = options_for(requests_);
    std::unique_ptr<Engine> engine;
    if (after_planning) engine = Engine::open(model, options);
    overwrite_the_end(weights_);
    try {
      if (!after_planning) Engine::open(model, options);
      engine->load({});
      ADD_FAILURE() << "changed weights were taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.text();
    }
  }
}

}  // namespace
}  // namespace sluice::testing
