// Many callers at one model, by the library's headers only.
#include <gtest/gtest.h>
#include <sluice/sluice.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>

namespace sluice {
namespace {

const std::string kStories = std::string(SLUICE_FIXTURES) + "/models/stories260k";

Options session_options() {
  Options options;
  options.memory_budget_bytes = 64 << 20;
  options.context_tokens = 256;
  options.sequences = 4;
  options.hardware = "none";
  options.compute = "f32";
  options.threads = 2;
  options.predicts_lengths = options.keeps_prefixes = true;
  return options;
}

Question question(const Tokenizer& tokenizer, const std::string& prompt, int tokens) {
  Question out;
  out.prompt = tokenizer.encode(prompt);
  out.sampling.temperature = 0;
  out.sampling.max_tokens = tokens;
  return out;
}

// All of an answer.
struct Told {
  std::string text, refused;
  std::vector<Choice> tokens, prompt;
  std::optional<Finish> finish;
  bool has_failed = false;
};
std::vector<Told> all_of(Answers& answers, size_t count) {
  std::vector<Told> out(count);
  for (size_t left = count; left > 0;) {
    const auto piece = answers.take(std::chrono::seconds(60));
    if (!piece) break;
    Told& told = out[piece->question];
    if (piece->is_last()) --left;
    if (piece->kind == Piece::Kind::kText) {
      told.text += piece->text;
      told.tokens.insert(told.tokens.end(), piece->tokens.begin(), piece->tokens.end());
    }
    if (piece->kind == Piece::Kind::kPrompt) told.prompt = piece->tokens;
    if (piece->kind == Piece::Kind::kFinished) told.finish = piece->finish;
    if (piece->kind == Piece::Kind::kRefused) told.refused = piece->text;
    if (piece->kind == Piece::Kind::kFailed) told.has_failed = true;
  }
  return out;
}

class SessionTest : public ::testing::Test {
 protected:
  Model model_ = Model::open(kStories);
  Tokenizer tokenizer_ = Tokenizer::load(kStories);
  Session session_{Plan::find(model_, session_options()), tokenizer_};

  std::string refusal(const std::function<void(Question&)>& change) {
    Question asked = question(tokenizer_, "Once", 4);
    change(asked);
    try {
      Answers answers = session_.ask({asked});
      return all_of(answers, 1)[0].refused;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser);
      return error.what();
    }
  }
};

TEST_F(SessionTest, AnswersWhatAGeneratorDoes) {
  Generator generator(Plan::find(model_, session_options()));
  std::vector<Question> asked;
  for (int i = 0; i < 9; ++i)
    asked.push_back(question(tokenizer_, "Day " + std::to_string(i), 5 + i));
  Answers answers = session_.ask(asked);
  const auto told = all_of(answers, asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto expected = generator.generate(asked[i].prompt, asked[i].sampling);
    ASSERT_EQ(told[i].tokens.size(), expected.size());
    for (size_t t = 0; t < expected.size(); ++t) EXPECT_EQ(told[i].tokens[t].token, expected[t]);
    EXPECT_EQ(told[i].text.empty(), false);
    EXPECT_EQ(told[i].finish, Finish::kLength);
  }
}

TEST_F(SessionTest, WhatIsAskedMeanwhileJoins) {
  Answers slow = session_.ask({question(tokenizer_, "Once upon a time", 200)});
  ASSERT_TRUE(slow.take(std::chrono::seconds(60)));
  Answers quick = session_.ask({question(tokenizer_, "One day", 2)});
  EXPECT_EQ(all_of(quick, 1)[0].tokens.size(), 2u);
  EXPECT_EQ(session_.running(), 1);
  slow.cancel();
  EXPECT_EQ(all_of(slow, 1)[0].finish, Finish::kCancelled);
}

TEST_F(SessionTest, ScoresAPromptAndHandsItsLogitsOver) {
  Question asked = question(tokenizer_, "Once upon a time", 1);
  asked.scores_prompt = true;
  asked.generates = false;
  asked.sampling.logprobs = 2;
  std::vector<int64_t> positions;
  std::vector<float> last;
  asked.on_logits = [&](int64_t position, std::span<const float> logits) {
    positions.push_back(position);
    last.assign(logits.begin(), logits.end());
  };
  Answers answers = session_.ask({asked});
  const Told told = all_of(answers, 1)[0];
  ASSERT_EQ(told.prompt.size(), asked.prompt.size());
  EXPECT_TRUE(std::isnan(told.prompt[0].logprob));
  for (size_t i = 1; i < told.prompt.size(); ++i) {
    EXPECT_EQ(told.prompt[i].token, asked.prompt[i]);
    EXPECT_LT(told.prompt[i].logprob, 0);
    EXPECT_EQ(told.prompt[i].top.size(), 2u);
  }
  EXPECT_EQ(positions, (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(last.size(), static_cast<size_t>(model_.vocabulary()));
  EXPECT_TRUE(told.tokens.empty());
  EXPECT_EQ(told.finish, Finish::kScored);
}

TEST_F(SessionTest, StopsGuidesAndBeams) {
  Question stop = question(tokenizer_, "Once upon a time", 60);
  stop.stop = {"Lily"};
  Question guided = question(tokenizer_, "x", 60);
  guided.guide = {Guide::Kind::kChoice, "", {"yes", "no"}};
  Question beams = question(tokenizer_, "Once", 5);
  beams.beams = 3;
  Answers answers = session_.ask({stop, guided, beams});
  const auto told = all_of(answers, 3);
  EXPECT_EQ(told[0].text, ", there was a little girl named ");
  EXPECT_EQ(told[0].finish, Finish::kStop);
  EXPECT_TRUE(told[1].text == "yes" || told[1].text == "no") << told[1].text;
  EXPECT_EQ(told[2].tokens.size(), 5u);
}

TEST_F(SessionTest, RefusesByName) {
  const std::pair<const char*, std::function<void(Question&)>> cases[] = {
      {"top_p", [](Question& q) { q.sampling.top_p = 7; }},
      {"logprobs", [](Question& q) { q.sampling.logprobs = 21; }},
      {"stop", [](Question& q) { q.stop = {""}; }},
      {"stop_token_ids", [](Question& q) { q.sampling.stop_tokens = {512}; }},
      {"logit_bias",
       [](Question& q) {
         q.sampling.logit_bias = {{-1, 1.F}};
       }},
      {"prompt", [](Question& q) { q.prompt = {512}; }},
      {"empty", [](Question& q) { q.prompt = {}; }},
      {"context_tokens", [](Question& q) { q.prompt.assign(300, 5); }},
      {"num_beams", [](Question& q) { q.beams = 65; }},
      {"beam", [](Question& q) { q.beams = 2, q.scores_prompt = true; }},
      {"neither", [](Question& q) { q.generates = false; }},
      {"regular", [](Question& q) {
         q.guide = {Guide::Kind::kRegex, "(", {}};
       }}};
  for (const auto& [words, change] : cases) {
    const std::string text = refusal(change);
    EXPECT_NE(text.find(words), std::string::npos) << words << " in: " << text;
  }
  EXPECT_EQ(refusal([](Question&) {}), "");
}

TEST_F(SessionTest, EndsBeforeItsAnswers) {
  Answers answers = session_.ask(std::vector<Question>(20, question(tokenizer_, "Once", 200)));
  std::jthread closing([&] { session_.close(); });
  for (const Told& told : all_of(answers, 20))
    EXPECT_TRUE(told.has_failed || told.finish) << "it waits for ever";
  closing.join();
  EXPECT_THROW(session_.ask({question(tokenizer_, "Once", 2)}), Error);
  EXPECT_EQ(session_.waiting() + session_.running(), 0);
  session_.close();
}

TEST_F(SessionTest, ManyThreadsAskAndLeave) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        Answers answers = session_.ask({question(tokenizer_, "Day " + std::to_string(t), 12)});
        if (i % 2 == 0) {
          EXPECT_EQ(all_of(answers, 1)[0].tokens.size(), 12u);
        } else {
          static_cast<void>(answers.take(std::chrono::milliseconds(5)));
        }
      }
    });
}

TEST_F(SessionTest, TellsThatAPieceHasCome) {
  std::atomic<int> told = 0;
  Answers answers = session_.ask({question(tokenizer_, "Once", 100)});
  answers.watch([&] { ++told; });
  all_of(answers, 1);
  EXPECT_GT(told, 3);
}

TEST(SessionWithoutText, AnswersIdsAndRefusesWhatNeedsText) {
  const Model model = Model::open(std::string(SLUICE_FIXTURES) + "/models/opt-tiny");
  Options options = session_options();
  options.context_tokens = 32;
  Session session(Plan::find(model, options));
  Question asked;
  asked.prompt = {2, 5, 7};
  asked.sampling.max_tokens = 4;
  Answers answers = session.ask({asked});
  EXPECT_EQ(all_of(answers, 1)[0].tokens.size(), 4u);
  asked.stop = {"x"};
  EXPECT_THROW(session.ask({asked}), Error);
}

TEST(ChatByTemplate, RendersReadsAndRefuses) {
  const Tokenizer tokenizer = Tokenizer::load(kStories);
  EXPECT_FALSE(Chat::find(kStories, tokenizer));
  const auto chat =
      Chat::find(kStories, tokenizer,
                 "{% if tools %}<tool_call>{% endif %}{% for m in messages %}<{{ m.role }}>"
                 "{{ m.content }}{% endfor %}<think>");
  ASSERT_TRUE(chat);
  const ChatPrompt prompt = chat->prompt(R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(prompt.text(), "<user>Hi<think>");
  EXPECT_EQ(prompt.guide().kind, Guide::Kind::kNone);
  ChatReader reader = prompt.reader();
  std::vector<ChatPart> parts = reader.add("so</think>\n\nHello");
  for (ChatPart& part : reader.finish()) parts.push_back(part);
  std::string thought, text;
  for (const ChatPart& part : parts)
    (part.kind == ChatPart::Kind::kThought ? thought : text) += part.text;
  EXPECT_EQ(thought, "so");
  EXPECT_EQ(text, "Hello");
  const std::string tools =
      R"("messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function",)"
      R"("function": {"name": "add", "parameters": {"type": "object"}}}])";
  EXPECT_EQ(chat->prompt("{" + tools + "}").guide().kind, Guide::Kind::kCalls);
  EXPECT_THROW(chat->prompt("{" + tools + "}", /*is_guided=*/true), Error);
  EXPECT_THROW(chat->prompt("{}"), Error);
  EXPECT_THROW(chat->prompt("["), Error);
  EXPECT_THROW(Chat::find(kStories, tokenizer, "{% if %}"), Error);
}

TEST(ProfilesAndForecasts, SayWhatAMachineWouldDo) {
  const auto names = Profile::names();
  ASSERT_NE(std::find(names.begin(), names.end(), "t4"), names.end());
  const Profile t4 = Profile::load("t4");
  EXPECT_GT(t4.device_bytes(), int64_t{10} << 30);
  EXPECT_GT(t4.disk_read(), 1e8);
  EXPECT_NE(t4.json().find("t4"), std::string::npos);
  EXPECT_THROW(Profile::load("abacus"), Error);
  ForecastOptions options;
  options.hardware = "t4";
  options.sequences = 16;
  options.finds_lifts = false;
  const Forecast slow = forecast("opt-30b", options);
  EXPECT_GT(slow.tokens_per_second, 0);
  EXPECT_NE(slow.text.find("tokens"), std::string::npos);
  options.weights = "int4";
  EXPECT_GT(forecast("opt-30b", options).tokens_per_second, slow.tokens_per_second);
  options.weights = "int3";
  EXPECT_THROW(forecast("opt-30b", options), Error);
  options.weights.clear();
  options.new_tokens = std::nan("");
  EXPECT_THROW(forecast("opt-30b", options), Error);
}

TEST(Conversion, WritesAStoreThatSaysTheSame) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("api_convert_" + std::to_string(getpid()));
  int64_t told = 0;
  ConvertOptions options;
  options.progress = [&](int64_t done, int64_t) { told = done; };
  const ConvertReport report = convert(kStories, folder, options);
  EXPECT_EQ(report.total_bytes, report.written_bytes);
  EXPECT_EQ(told, report.total_bytes);
  const auto said = [](const std::filesystem::path& path) {
    return Generator(Plan::find(Model::open(path), session_options()))
        .generate({1, 403, 407}, {.temperature = 0});
  };
  EXPECT_EQ(said(folder), said(kStories));
  options.weights = "int3";
  EXPECT_THROW(convert(kStories, folder, options), Error);
  std::stop_source stopped;
  stopped.request_stop();
  options.weights = "int8";
  options.overwrite = true;
  EXPECT_THROW(convert(kStories, folder, options, stopped.get_token()), Error);
  std::filesystem::remove_all(folder);
}

// Told apart by the words of what is wrong.
std::string refusal(const std::filesystem::path& folder, const ConvertOptions& options) {
  try {
    convert(kStories, folder, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser) << error.what();
    return error.what();
  }
  return "";
}

TEST(Conversion, LosesLessWhereATextSaysWhatCounts) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("api_calibrate_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const auto text = folder / "text.txt";
  std::string story = "Once upon a time there was a little girl who liked to play in the park. ";
  for (int i = 0; i < 4; ++i) story += story;
  std::ofstream(text) << story;
  std::set<std::string> told;
  ConvertOptions options;
  options.preparing = [&](std::string_view what, int64_t, int64_t, std::string_view) {
    told.emplace(what);
  };
  options.bits = 5;
  const ConvertReport mixed = convert(kStories, folder / "mixed", options);
  options.calibrate = text;
  options.calibrate_tokens = 200;
  const ConvertReport calibrated = convert(kStories, folder / "calibrated", options);
  EXPECT_TRUE(told.contains("calibrating"));
  EXPECT_LE(calibrated.total_bytes, 1.02 * static_cast<double>(mixed.total_bytes));
  const auto said = [](const std::filesystem::path& path) {
    return Generator(Plan::find(Model::open(path), session_options()))
        .generate({1, 403, 407}, {.temperature = 0});
  };
  EXPECT_FALSE(said(folder / "calibrated").empty());

  options.weights = "int4";
  EXPECT_NE(refusal(folder / "x", options).find("`bits` with `weights`"), std::string::npos);
  options.bits = 0;
  options.imatrix = text;
  EXPECT_NE(refusal(folder / "x", options).find("`imatrix` with"), std::string::npos);
  options.imatrix.clear();
  options.calibrate_tokens = 0;
  EXPECT_NE(refusal(folder / "x", options).find("`calibrate_tokens` is 0"), std::string::npos);
  options.calibrate_tokens = 200;
  options.lora = folder;
  EXPECT_NE(refusal(folder / "x", options).find("adapter"), std::string::npos);
  options.lora.clear();
  options.weights = "f16";
  EXPECT_NE(refusal(folder / "x", options).find("without quantised"), std::string::npos);
  options.calibrate.clear();
  options.weights.clear();
  for (const double bits : {-1.0, 0.5, 33.0, std::nan("")}) {
    options.bits = bits;
    EXPECT_NE(refusal(folder / "x", options), "") << bits;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sluice
