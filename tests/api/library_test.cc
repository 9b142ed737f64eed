// The library as a program outside sees it: its headers only.
#include <gtest/gtest.h>
#include <sluice/sluice.h>

#include <fstream>
#include <map>
#include <sstream>
#include <thread>

namespace sluice {
namespace {

const std::string kModel = std::string(SLUICE_FIXTURES) + "/models/stories260k";

Options small() {
  Options options;
  options.memory_budget_bytes = 64 << 20;
  options.context_tokens = 128;
  options.hardware = "none";
  options.compute = "f32";
  options.threads = 2;
  return options;
}

Sampling greedy(int tokens) {
  Sampling sampling;
  sampling.temperature = 0;
  sampling.max_tokens = tokens;
  return sampling;
}

TEST(Library, SaysWhatAModelIs) {
  const Model model = Model::open(kModel);
  EXPECT_EQ(model.family(), "llama");
  EXPECT_EQ(model.weights(), "f32");
  EXPECT_EQ(model.layers(), 5);
  EXPECT_EQ(model.vocabulary(), 512);
  EXPECT_GT(model.parameters(), 250000);
  EXPECT_GT(model.longest_context(), 128);
  EXPECT_TRUE(model.notes().empty());
  EXPECT_THROW(Model::open("/nowhere"), Error);
}

TEST(Library, GeneratesAsTheTokensCome) {
  const Model model = Model::open(kModel);
  const Tokenizer tokenizer = Tokenizer::load(kModel);
  Generator generator(Plan::find(model, small()));
  TextStream text(tokenizer);
  std::string said;
  const auto prompt = tokenizer.encode("Once upon a time");
  const auto tokens = generator.generate(prompt, greedy(32), [&](int32_t token) {
    said += text.push(token);
    return true;
  });
  said += text.finish();
  EXPECT_EQ(said.rfind(", there was a little girl named Lily.", 0), 0u) << said;
  EXPECT_EQ(tokens.size(), 32u);
  EXPECT_EQ(generator.stats().decode_tokens, 32);
  EXPECT_GT(generator.stats().peak_memory_bytes, model.weight_bytes());

  int64_t seen = 0;
  const auto cut = generator.generate(prompt, greedy(32), [&](int32_t) { return ++seen < 5; });
  EXPECT_EQ(cut, std::vector<int32_t>(tokens.begin(), tokens.begin() + 5));
  EXPECT_EQ(tokenizer.decode(tokens).substr(0, 10), said.substr(0, 10));
}

TEST(Library, RequestsChooseAdapters) {
  const Model model = Model::open(kModel);
  const std::string folder = std::string(SLUICE_FIXTURES) + "/lora/stories-";
  Options options = small();
  options.sequences = 3;
  options.lora = {"a=" + folder + "a", "b=" + folder + "b"};
  Generator generator(Plan::find(model, options));
  struct Three final : Source, Sink {
    std::optional<Request> next() override {
      if (given == 4) return std::nullopt;
      const char* const names[] = {"", "a", "b", "c"};
      Request request{given, prompt, greedy(8)};
      request.adapter = names[given++];
      return request;
    }
    bool on_token(uint64_t id, int32_t token) override {
      tokens[id].push_back(token);
      return true;
    }
    void on_finish(uint64_t, Finish) override {}
    void on_refused(uint64_t id, const std::string& why) override { refused[id] = why; }
    const std::vector<int32_t> prompt = Tokenizer::load(kModel).encode("Once upon a time");
    uint64_t given = 0;
    std::map<uint64_t, std::vector<int32_t>> tokens;
    std::map<uint64_t, std::string> refused;
  } all;
  generator.run(all, all);
  EXPECT_EQ(all.tokens.size(), 3u);
  EXPECT_NE(all.tokens[0], all.tokens[1]);
  EXPECT_NE(all.tokens[1], all.tokens[2]);
  EXPECT_EQ(all.tokens[0], Generator(Plan::find(model, small())).generate(all.prompt, greedy(8)));
  EXPECT_NE(all.refused[3].find("`adapter`"), std::string::npos) << all.refused[3];
  options.lora = {"a=/nowhere"};
  EXPECT_THROW(Plan::find(model, options), Error);
}

TEST(Library, APlanIsFoundLookedAtAndRun) {
  const Model model = Model::open(kModel);
  Options options = small();
  const Plan all = Plan::find(model, options);
  EXPECT_EQ(all.streamed_bytes(), 0);
  EXPECT_EQ(all.context_tokens(), 128);
  EXPECT_FALSE(all.expected_tokens_per_second());
  options.policy = R"({"weights": {"device": 0, "host": 0, "disk": 1}})";
  const Plan streamed = Plan::find(model, options);
  EXPECT_GT(streamed.streamed_bytes(), 0);
  EXPECT_LT(streamed.memory_bytes(), all.memory_bytes());
  EXPECT_NE(streamed.table().find("weight"), std::string::npos) << streamed.table();
  EXPECT_NE(streamed.policy(), all.policy());
  const std::vector<int32_t> prompt{1, 403, 407};
  EXPECT_EQ(Generator(streamed).generate(prompt, greedy(8)),
            Generator(all).generate(prompt, greedy(8)));
}

class Listed final : public Source, public Sink {
 public:
  explicit Listed(std::vector<Request> requests) : requests_(std::move(requests)) {}
  std::optional<Request> next() override {
    if (at_ == requests_.size()) return std::nullopt;
    return requests_[at_++];
  }
  bool on_token(uint64_t id, int32_t token) override {
    tokens[id].push_back(token);
    return true;
  }
  void on_finish(uint64_t id, Finish finish) override { finishes[id] = finish; }
  void on_refused(uint64_t id, const std::string& why) override { refusals[id] = why; }

  std::map<uint64_t, std::vector<int32_t>> tokens;
  std::map<uint64_t, Finish> finishes;
  std::map<uint64_t, std::string> refusals;

 private:
  std::vector<Request> requests_;
  size_t at_ = 0;
};

TEST(Library, ABatchGoesOnWhereARequestIsRefused) {
  Options options = small();
  options.sequences = 3;
  Generator generator(Plan::find(Model::open(kModel), options));
  Sampling bad = greedy(4);
  bad.top_p = 7;
  Listed listed({{7, {1, 403}, greedy(6)},
                 {8, {}, greedy(6)},
                 {9, {1, 403}, bad},
                 {10, std::vector<int32_t>(500, 5), greedy(6)},
                 {11, {1, 407}, greedy(3)}});
  generator.run(listed, listed);
  EXPECT_EQ(listed.tokens[7].size(), 6u);
  EXPECT_EQ(listed.tokens[11].size(), 3u);
  EXPECT_EQ(listed.finishes[7], Finish::kLength);
  EXPECT_NE(listed.refusals[8].find("empty"), std::string::npos);
  EXPECT_NE(listed.refusals[9].find("top_p"), std::string::npos);
  EXPECT_NE(listed.refusals[10].find("context_tokens"), std::string::npos);
  EXPECT_EQ(listed.finishes.size(), 2u);
}

std::string refusal(const std::function<void(Options&)>& change) {
  Options options = small();
  change(options);
  try {
    Generator generator(Plan::find(Model::open(kModel), options));
  } catch (const Error& error) {
    return std::string(error.what());
  }
  return "taken";
}

TEST(Library, ErrorsNameTheFieldsOfOptions) {
  EXPECT_EQ(refusal([](Options&) {}), "taken");
  const std::pair<const char*, std::function<void(Options&)>> cases[] = {
      {"`memory_budget_bytes`", [](Options& o) { o.memory_budget_bytes = 10000; }},
      {"`compute`", [](Options& o) { o.compute = "f64"; }},
      {"`kv_dtype`", [](Options& o) { o.kv_dtype = "int2"; }},
      {"`device`", [](Options& o) { o.device = "abacus"; }},
      {"`context_tokens`", [](Options& o) { o.context_tokens = 0; }},
      {"policy", [](Options& o) { o.policy = "{"; }},
      {"hardware", [](Options& o) { o.hardware = "/nowhere/profile.json"; }}};
  for (const auto& [words, change] : cases) {
    const std::string text = refusal(change);
    EXPECT_NE(text.find(words), std::string::npos) << words << " in: " << text;
    EXPECT_EQ(text.find("--"), std::string::npos) << text;
  }
}

TEST(Library, BatchInvarianceIsAsked) {
  const Model model = Model::open(kModel);
  Options options = small();
  options.batch_invariant = true;
  Generator generator(Plan::find(model, options));
  EXPECT_EQ(generator.generate({1, 403, 407}, greedy(8)).size(), 8u);
  options.device = "cuda";
  EXPECT_THROW(Plan::find(model, options), Error) << "no GPU, or one that does not know it";
}

TEST(Library, TwoGeneratorsRunAtOnce) {
  const Model model = Model::open(kModel);
  const Plan plan = Plan::find(model, small());
  const auto expected = Generator(plan).generate({1, 403, 407}, greedy(16));
  std::vector<int32_t> got[2];
  {
    std::vector<std::jthread> threads;
    for (auto& tokens : got)
      threads.emplace_back([&plan, &tokens] {
        tokens = Generator(plan).generate({1, 403, 407}, greedy(16));
      });
  }
  EXPECT_EQ(got[0], expected);
  EXPECT_EQ(got[1], expected);
}

}  // namespace
}  // namespace sluice
