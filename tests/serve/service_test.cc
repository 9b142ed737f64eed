// The three stages: what many callers ask for at once is what each gets alone; stop strings, prompt
// scores, samples, callers that leave, a full queue, the end.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "src/base/error.h"
#include "tests/serve/served_model.h"

namespace sluice::serve {
namespace {

Told ask(GenerationService& service, Submission submission) {
  const auto samples = static_cast<size_t>(submission.samples);
  std::vector<Submission> all;
  all.push_back(std::move(submission));
  auto admission = service.submit(std::move(all));
  EXPECT_EQ(admission.outcome, RequestQueue::Outcome::kTaken);
  return admission.ticket ? hear(admission.ticket->mailbox(), samples) : Told{};
}

void wait_until_idle(const GenerationService& service) {
  for (int i = 0; i < 6000 && service.running() + service.waiting() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(service.running() + service.waiting(), 0);
}

TEST(GenerationService, ManyCallersGetWhatEachGetsAlone) {
  ServedModel model;
  const std::vector<std::string> prompts = {"Once upon a time", "Once upon a time there was",
                                            "The dog", "Lily",
                                            "Once upon a time there was a little cat who"};
  std::vector<Told> alone;
  for (const std::string& prompt : prompts)
    alone.push_back(ask(model.service(), model.greedy(prompt, 60)));
  EXPECT_TRUE(alone[0].texts[0].starts_with(", there was a little girl named Lily"));
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 8; ++caller)
    callers.emplace_back([&, caller] {
      std::mt19937 random(static_cast<unsigned>(caller));
      for (int round = 0; round < 6; ++round) {
        const size_t which = random() % prompts.size();
        if (random() % 4 == 0) {  // leaves in the middle
          std::vector<Submission> all;
          all.push_back(model.greedy(prompts[which], 60));
          auto admission = model.service().submit(std::move(all));
          for (int events = static_cast<int>(random() % 5); events > 0; --events)
            admission.ticket->mailbox().take(std::chrono::seconds(60));
          continue;
        }
        const Told told = ask(model.service(), model.greedy(prompts[which], 60));
        EXPECT_EQ(told.texts, alone[which].texts);
        EXPECT_EQ(told.reasons, alone[which].reasons);
      }
    });
  callers.clear();
  wait_until_idle(model.service());
}

TEST(GenerationService, StopStringsEndAnAnswerAndAreNotPartOfIt) {
  ServedModel model;
  Submission stopped = model.greedy("Once upon a time", 60);
  stopped.params.stop = {"named Li"};
  const Told told = ask(model.service(), stopped);
  EXPECT_EQ(told.texts[0], ", there was a little girl ");
  EXPECT_EQ(told.reasons[0], "stop");
  EXPECT_LT(told.tokens[0], 20);
  stopped.stops_are_kept = true;
  EXPECT_EQ(ask(model.service(), stopped).texts[0], ", there was a little girl named Li");
  wait_until_idle(model.service());
}

TEST(GenerationService, SpecialTokensAreTextWhereTheyAreAskedForButTheEndIsNot) {
  ServedModel model;
  const int32_t end = *model.tokenizer().eos(), begin = *model.tokenizer().bos();
  Submission ended = model.greedy("Once upon a time", 5);
  ended.params.logit_bias = {{end, 100.0F}};
  ended.keeps_special = true;
  Told told = ask(model.service(), ended);
  EXPECT_EQ(told.texts[0], "");
  EXPECT_EQ(told.reasons[0], "stop");
  ended.params.logit_bias = {{begin, 100.0F}};
  told = ask(model.service(), ended);
  EXPECT_NE(told.texts[0].find(model.tokenizer().token_bytes(begin)), std::string::npos)
      << told.texts[0];
  ended.keeps_special = false;
  EXPECT_EQ(ask(model.service(), ended).texts[0], "");
}

TEST(GenerationService, BeamsAnswerWithTheBestOfTheirSearch) {
  ServedModel model;
  Submission search = model.greedy("Once upon a time", 20);
  search.params.num_beams = 3;
  search.params.logprobs = 0;
  search.samples = 3;
  const Told alone = ask(model.service(), search);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(alone.texts[i].empty());
    EXPECT_EQ(alone.reasons[i], "length");
    EXPECT_EQ(alone.tokens[i], 20);
    EXPECT_NE(alone.texts[i], alone.texts[(i + 1) % 3]);
  }
  // Among others, and with callers that leave in the middle.
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 4; ++round) {
        if ((caller + round) % 3 == 0) {
          std::vector<Submission> all{search};
          auto admission = model.service().submit(std::move(all));
          admission.ticket->mailbox().take(std::chrono::milliseconds(5));
          continue;
        }
        EXPECT_EQ(ask(model.service(), search).texts, alone.texts);
        ask(model.service(), model.greedy("Lily", 10));
      }
    });
  callers.clear();
  wait_until_idle(model.service());
  search.params.num_beams = 9;
  EXPECT_NE(ask(model.service(), search).refused.find("9 beams"), std::string::npos);
}

TEST(GenerationService, GuidedAnswersAreWhatWasAskedFor) {
  ServedModel model;
  Submission guided = model.greedy("Once upon a time", 100);
  guided.params.guide = {sampling::GuideKind::kChoice, {}, {"the cat", "a dog", "ünïcode"}};
  const Told told = ask(model.service(), guided);
  EXPECT_TRUE(told.texts[0] == "the cat" || told.texts[0] == "a dog" || told.texts[0] == "ünïcode")
      << told.texts[0];
  EXPECT_EQ(told.reasons[0], "stop");
  guided.params.guide = {sampling::GuideKind::kRegex, "[0-9]{3}-[a-f]{2}", {}};
  guided.params.temperature = 1;
  guided.samples = 4;
  for (const std::string& text : ask(model.service(), guided).texts) {
    ASSERT_EQ(text.size(), 6u) << text;
    EXPECT_EQ(text[3], '-');
  }
  guided.params.guide.text = "(";
  EXPECT_THROW(ask(model.service(), guided), Error);
  wait_until_idle(model.service());
}

TEST(GenerationService, SamplesOfASeedAreRepeatableAndDiffer) {
  ServedModel model;
  Submission sampled = model.greedy("Once upon a time", 24);
  sampled.params.temperature = 1.2f;
  sampled.params.seed = 5;
  sampled.params.has_seed = true;
  const Told one = ask(model.service(), sampled);
  sampled.samples = 3;
  const Told three = ask(model.service(), sampled);
  EXPECT_EQ(three.texts[0], one.texts[0]) << "the first sample is what the seed gives alone";
  EXPECT_NE(three.texts[1], three.texts[2]);
  EXPECT_EQ(ask(model.service(), sampled).texts, three.texts);
}

TEST(GenerationService, ScoresAPromptAndGoesOn) {
  ServedModel model;
  Submission scored = model.greedy("Once upon a time", 6);
  scored.scores_prompt = true;
  scored.params.logprobs = 2;
  const Told told = ask(model.service(), scored);
  ASSERT_EQ(told.prompts[0].size(), scored.prompt.size());
  EXPECT_TRUE(std::isnan(told.prompts[0][0].logprob));
  EXPECT_NEAR(told.prompts[0][1].logprob, -0.24374, 1e-3);  // as transformers has it for this model
  EXPECT_EQ(told.prompts[0][1].top.size(), 2u);
  EXPECT_GE(told.prompts[0][1].top[0].logprob, told.prompts[0][1].top[1].logprob);
  EXPECT_TRUE(told.texts[0].starts_with(", there was"));
  scored.generates = false;
  const Told only = ask(model.service(), scored);
  EXPECT_EQ(only.prompts[0].size(), scored.prompt.size());
  EXPECT_EQ(only.texts[0], "");
  EXPECT_EQ(only.tokens[0], 0);
}

TEST(GenerationService, RefusesOneAndServesTheOthers) {
  ServedModel model;
  const std::string expected = ask(model.service(), model.greedy("The dog", 20)).texts[0];
  Submission too_long = model.greedy("x", 5);
  too_long.prompt.assign(1000, 5);
  EXPECT_NE(ask(model.service(), too_long).refused.find("1000 tokens"), std::string::npos);
  Submission impossible = model.greedy("The dog", 20);
  impossible.params.repetition_penalty = 1e-38f;  // drives logits to infinity
  EXPECT_NE(ask(model.service(), impossible).refused.find("inf"), std::string::npos);
  EXPECT_EQ(ask(model.service(), model.greedy("The dog", 20)).texts[0], expected);
  EXPECT_EQ(model.service().failure(), "");
}

TEST(GenerationService, AFullQueueRefusesWhole) {
  ServedModel model(2, 1);
  std::vector<GenerationService::Admission> long_ones;
  for (int i = 0; i < 3; ++i) {
    std::vector<Submission> one{model.greedy("Lily", 200)};
    one.front().params.ignore_eos = true;
    long_ones.push_back(model.service().submit(std::move(one)));
    ASSERT_EQ(long_ones.back().outcome, RequestQueue::Outcome::kTaken);
    while (i == 0 && model.service().running() == 0) std::this_thread::yield();
  }
  std::vector<Submission> three;
  for (int i = 0; i < 3; ++i) three.push_back(model.greedy("Lily", 5));
  EXPECT_EQ(model.service().submit(std::move(three)).outcome, RequestQueue::Outcome::kFull);
  EXPECT_GE(model.service().retry_after_seconds(), 1);
  EXPECT_EQ(model.service().running() + model.service().waiting(), 3);
  long_ones.clear();
  wait_until_idle(model.service());
  EXPECT_EQ(ask(model.service(), model.greedy("Lily", 5)).reasons[0], "length");
}

// More prompts than may wait go through the queue one behind another; who leaves takes all along.
TEST(GenerationService, ALongListOfPromptsWaitsInside) {
  ServedModel model(8, 4);
  const Told alone = ask(model.service(), model.greedy("The dog", 3));
  const auto submit = [&](size_t count) {
    std::vector<Submission> all;
    for (size_t i = 0; i < count; ++i)
      all.push_back(model.greedy(i % 2 == 0 ? "The dog" : "Lily", 3));
    return model.service().submit(std::move(all));
  };
  for (const size_t count : {1u, 7u, 8u, 9u, 300u}) {
    const auto admission = submit(count);
    ASSERT_EQ(admission.outcome, RequestQueue::Outcome::kTaken) << count;
    const Told told = hear(admission.ticket->mailbox(), count);
    for (size_t i = 0; i < count; i += 2) ASSERT_EQ(told.texts[i], alone.texts[0]);
  }
  for (int round = 0; round < 30; ++round) {
    auto admission = submit(200);
    ASSERT_EQ(admission.outcome, RequestQueue::Outcome::kTaken);
    for (int events = 0; events < round * 5; ++events)
      admission.ticket->mailbox().take(std::chrono::seconds(60));
    admission.ticket.reset();
    wait_until_idle(model.service());
  }
}

// Its many answers take all places; who comes then does not wait for any of them to end.
TEST(GenerationService, OneCallerDoesNotKeepAnotherWaiting) {
  ServedModel model;
  const Told alone = ask(model.service(), model.greedy("Lily", 8));
  Submission many = model.greedy("Once upon a time", 150);
  many.samples = 32;
  many.params.temperature = 1;
  many.params.ignore_eos = true;
  many.caller = {100, 1};
  std::vector<Submission> all{std::move(many)};
  const auto admission = model.service().submit(std::move(all));
  while (model.service().running() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Submission scored = model.greedy("Lily", 8);
  scored.caller = {200, 1};
  scored.scores_prompt = true;  // what it is to tell is there when it gets its place
  const Told told = ask(model.service(), std::move(scored));
  EXPECT_EQ(told.texts, alone.texts);
  ASSERT_EQ(told.prompts.size(), 1u);
  EXPECT_EQ(told.prompts[0].size(), model.encode("Lily").size());
  EXPECT_GT(model.service().running() + model.service().waiting(), 26);
}

TEST(GenerationService, ACallerHoldsSoManyTokensAtMost) {
  ServedModel model(100, 4, 256, {}, 300);
  const auto submit = [&](uint64_t caller, int tokens, int samples = 1) {
    Submission one = model.greedy("Once upon a time", tokens);
    one.samples = samples;
    one.caller = {caller, 1};
    std::vector<Submission> all{std::move(one)};
    return model.service().submit(std::move(all));
  };
  EXPECT_EQ(submit(1, 100, 3).outcome, RequestQueue::Outcome::kOverShare) << "with its prompts";
  auto first = submit(1, 200);
  EXPECT_EQ(first.outcome, RequestQueue::Outcome::kTaken);
  EXPECT_EQ(submit(1, 200).outcome, RequestQueue::Outcome::kOverShare);
  auto other = submit(2, 200);
  EXPECT_EQ(other.outcome, RequestQueue::Outcome::kTaken);
  hear(first.ticket->mailbox(), 1);
  auto again = submit(1, 200);
  EXPECT_EQ(again.outcome, RequestQueue::Outcome::kTaken);
  again.ticket.reset();
  other.ticket.reset();
  wait_until_idle(model.service());
  for (int i = 0; i < 20; ++i) {
    auto one = submit(1, 250);
    ASSERT_EQ(one.outcome, RequestQueue::Outcome::kTaken) << "what has ended counts no more";
    one.ticket.reset();
    wait_until_idle(model.service());
  }
}

TEST(GenerationService, DrainsWhatRunsThenTellsTheRest) {
  ServedModel model(100, 1);
  std::vector<GenerationService::Admission> admissions;
  for (int i = 0; i < 5; ++i) {
    std::vector<Submission> one;
    one.push_back(model.greedy("Once upon a time", 40));
    admissions.push_back(model.service().submit(std::move(one)));
  }
  model.service().drain(std::chrono::seconds(60));
  for (auto& admission : admissions)
    EXPECT_EQ(hear(admission.ticket->mailbox(), 1).reasons[0], "length");
  std::vector<Submission> late;
  late.push_back(model.greedy("Lily", 5));
  EXPECT_EQ(model.service().submit(std::move(late)).outcome, RequestQueue::Outcome::kClosed);
}

// What the engine has told until then may be wrong, and is no answer that was cut short.
TEST(GenerationService, AFailureOfTheEngineIsToldToWhoRunsAndWhoWaits) {
  ServedModel model(100, 2);
  std::vector<GenerationService::Admission> running;
  for (int i = 0; i < 6; ++i) {
    std::vector<Submission> one{model.greedy("Once upon a time", 200)};
    running.push_back(model.service().submit(std::move(one)));
  }
  ASSERT_TRUE(running[0].ticket->mailbox().take(std::chrono::seconds(60)));
  Submission scored = model.greedy("Once upon a time", 6);
  scored.scores_prompt = true;
  scored.priority = 1;
  scored.on_logits = [](int64_t, std::span<const float>) {
    throw Error(ErrorKind::kFile, "a read of weights failed", "look at the disk");
  };
  EXPECT_NE(ask(model.service(), scored).failed.find("a read of weights"), std::string::npos);
  for (auto& one : running) {
    const Told told = hear(one.ticket->mailbox(), 1);
    if (told.reasons[0] != "length")
      EXPECT_NE(told.failed.find("a read of weights"), std::string::npos) << told.reasons[0];
  }
  EXPECT_EQ(model.service().failure_kind(), ErrorKind::kFile);
  std::vector<Submission> late{model.greedy("Lily", 5)};
  EXPECT_EQ(model.service().submit(std::move(late)).outcome, RequestQueue::Outcome::kClosed);
}

TEST(GenerationService, ADrainWithoutTimeEndsWhatRuns) {
  ServedModel model(100, 1);
  std::vector<Submission> many;
  for (int i = 0; i < 20; ++i) many.push_back(model.greedy("Once upon a time", 200));
  auto admission = model.service().submit(std::move(many));
  model.service().drain(std::chrono::milliseconds(0));
  const Told told = hear(admission.ticket->mailbox(), 20);
  EXPECT_TRUE(!told.failed.empty() ||
              std::count(told.reasons.begin(), told.reasons.end(), "cancelled") > 0);
}

}  // namespace
}  // namespace sluice::serve
