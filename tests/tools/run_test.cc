// sluice run: the text that the trained model gives, and everything said beside it.
#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Ids = std::vector<int32_t>;

std::string answer_of(const Golden& golden) { return golden.text.substr(golden.prompt.size()); }

TEST(Run, TextOnStandardOutputIsTheReferencesAndNothingElse) {
  for (const Golden& golden : goldens("stories260k")) {
    if (golden.prompt.empty()) continue;
    const Outcome outcome = succeed({"run", kModel, "-p", golden.prompt, "-n", "64"});
    EXPECT_EQ(outcome.out, answer_of(golden) + "\n") << golden.prompt;
    EXPECT_NE(outcome.err.find("busiest lane"), std::string::npos);
  }
}

TEST(Run, BatchInvarianceIsSaidAndGivesTheReferencesText) {
  const Golden golden = goldens("stories260k").front();
  const Outcome outcome =
      succeed({"run", kModel, "-p", golden.prompt, "-n", "64", "-v", "--batch-invariant"});
  EXPECT_EQ(outcome.out, answer_of(golden) + "\n");
  EXPECT_NE(outcome.err.find(", batch-invariant"), std::string::npos) << outcome.err;
  fail({"run", kModel, "-p", "x", "--batch-invariant", "--kv-dtype", "int8", "--kv-recent", "8"}, 2,
       {"--batch-invariant", "--kv-recent"});
}

TEST(Run, JsonHoldsIdsPolicyAndStats) {
  const Golden golden = goldens("stories260k").front();
  const auto json =
      succeed({"run", kModel, "-p", golden.prompt, "-n", "64", "--json", "--cpu-mem", "64MiB"})
          .json();
  EXPECT_EQ(json["text"], answer_of(golden));
  EXPECT_EQ(json["token_ids"].get<Ids>(), golden.greedy_ids);
  EXPECT_EQ(json["prompt_token_ids"].get<Ids>(), golden.prompt_ids);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["model"], kModel);
  EXPECT_EQ(json["policy"]["weights"]["device"], 1.0);
  const auto& stats = json["stats"];
  EXPECT_EQ(stats["prefill_tokens"], golden.prompt_ids.size());
  EXPECT_EQ(stats["decode_tokens"], 64);
  for (const char* key : {"prefill_s", "decode_s", "tokens_per_s", "wall_s", "load_s"})
    EXPECT_GT(stats[key].get<double>(), 0) << key;
  const auto peak = stats["peak_bytes"]["device"].get<int64_t>();
  EXPECT_GE(peak, 260032 * 4) << "the weights alone";
  EXPECT_LE(peak, stats["budget_bytes"]["device"].get<int64_t>());
  EXPECT_EQ(stats["budget_bytes"]["device"], 64 << 20);
  for (const char* key : {"peak_bytes", "budget_bytes"})
    for (const char* tier : {"device", "host", "disk"})
      EXPECT_TRUE(stats[key][tier].is_number_integer()) << key << tier;
  EXPECT_GT(stats["lanes"]["device compute"]["busy_s"].get<double>(), 0);
  EXPECT_TRUE(stats["lanes"]["device compute"]["bytes"].is_number_integer());
}

TEST(Run, LanesOfAStreamedRunCountTheBytesThatThePlanNames) {
  const auto stats = succeed({"run", kModel, "-p", "Once upon a time", "-n", "8", "--json",
                              "--percent", "0", "0", "100", "0", "100", "0"})
                         .json()["stats"];
  const auto per_pass = stats["streamed_bytes_per_pass"].get<int64_t>();
  EXPECT_GT(per_pass, 1000 * 1000);
  EXPECT_GE(stats["lanes"]["disk read"]["bytes"].get<int64_t>(),
            per_pass * stats["passes"].get<int64_t>());
  EXPECT_GT(stats["lanes"]["disk read"]["busy_s"].get<double>(), 0);
}

TEST(Run, PromptIdsNeedNoTokenizer) {
  const Golden golden = goldens("opt-tiny-bin").at(1);
  const auto outcome = succeed({"run", fixture_model("opt-tiny-bin"), "--prompt-ids",
                                id_list(golden.prompt_ids), "-n", "24", "--ignore-eos"});
  EXPECT_EQ(outcome.out, id_list(golden.greedy_ids) + "\n");
}

TEST(Run, SeveralPromptsRunTogetherAndKeepTheirOrder) {
  const auto cases = goldens("stories260k");
  const auto json = succeed({"run", kModel, "-p", cases[0].prompt, "-p", cases[1].prompt, "-p",
                             cases[3].prompt, "-n", "64", "--json"})
                        .json();
  ASSERT_EQ(json["results"].size(), 3u);
  EXPECT_EQ(json["results"][0]["token_ids"].get<Ids>(), cases[0].greedy_ids);
  EXPECT_EQ(json["results"][1]["token_ids"].get<Ids>(), cases[1].greedy_ids);
  EXPECT_EQ(json["results"][2]["token_ids"].get<Ids>(), cases[3].greedy_ids);
  EXPECT_EQ(json["stats"]["decode_tokens"], 3 * 64);
  const auto plain =
      succeed({"run", kModel, "-p", cases[0].prompt, "-p", cases[1].prompt, "-n", "64"});
  for (size_t i : {0, 1})
    EXPECT_NE(plain.out.find("--- prompt " + std::to_string(i + 1) + " (length)\n" +
                             answer_of(cases[i]) + "\n"),
              std::string::npos)
        << plain.out;
}

TEST(Run, PromptsComeFromFilesAndStandardInputToo) {
  const Golden golden = goldens("stories260k").at(4);  // has line ends and quotes
  const TemporaryFolder folder;
  write_file(folder.path("prompt.txt"), golden.prompt);
  EXPECT_EQ(succeed({"run", kModel, "-f", folder.path("prompt.txt"), "-n", "64"}).out,
            answer_of(golden) + "\n");
  EXPECT_EQ(succeed({"run", kModel, "-f", "-", "-n", "64"}, {.input = golden.prompt}).out,
            answer_of(golden) + "\n");
}

TEST(Run, AnEmptyPromptBeginsFromBeginOfText) {
  const Golden golden = goldens("stories260k").at(2);
  ASSERT_EQ(golden.prompt_ids, Ids{1});
  const auto json = succeed({"run", kModel, "-p", "", "-n", "64", "--json"}).json();
  EXPECT_EQ(json["prompt_token_ids"].get<Ids>(), golden.prompt_ids);
  EXPECT_EQ(json["token_ids"].get<Ids>(), golden.greedy_ids);
}

TEST(Run, AStopStringEndsTheTextBeforeIt) {
  const auto json = succeed({"run", kModel, "-p", "Once upon a time", "-n", "64", "--json",
                             "--stop", "zebra", "--stop", " girl"})
                        .json();
  EXPECT_EQ(json["text"], ", there was a little");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_LT(json["token_ids"].size(), 10u);
  // Also as it streams: no part of the stop string may have gone out.
  EXPECT_EQ(succeed({"run", kModel, "-p", "Once upon a time", "-n", "64", "--stop", " girl"}).out,
            ", there was a little\n");
}

TEST(Run, EndsAtTheModelsContext) {
  const auto json =
      succeed({"run", kModel, "-p", "Once", "-n", "5000", "--ignore-eos", "--json"}).json();
  EXPECT_EQ(json["prompt_token_ids"].size() + json["token_ids"].size(), 512u);
  EXPECT_EQ(json["finish_reason"], "length");
}

TEST(Run, GoesBeyondTheModelsContextWithANoteWhereThatIsAsked) {
  const Outcome longer = succeed(
      {"run", kModel, "-p", "Once", "-n", "600", "--ignore-eos", "--ctx-size", "700", "--json"});
  EXPECT_EQ(longer.json()["token_ids"].size(), 600u);
  EXPECT_NE(longer.err.find("note: it was made for 512 positions"), std::string::npos)
      << longer.err;
  EXPECT_NE(longer.err.find("--rope-factor 2"), std::string::npos) << longer.err;
  const Outcome stretched =
      succeed({"run", kModel, "-p", "Once", "-n", "600", "--json", "--ignore-eos", "--rope-scaling",
               "yarn", "--rope-factor", "2"});
  EXPECT_EQ(stretched.json()["token_ids"].size(), 600u);
  EXPECT_EQ(stretched.err.find("note:"), std::string::npos) << stretched.err;
  // What the model was made for is all that there is without either.
  fail({"run", kModel, "-p", "Once", "-n", "2", "--ctx-size", "100000"}, 2, {"512 positions"});
}

TEST(Run, KeysAndValuesInLlamaCppsWordsAreOneFormat) {
  const std::vector<std::string> words{"run", kModel, "-p",           "Once",
                                       "-n",  "20",   "--ignore-eos", "--json"};
  const auto ids = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), words.begin(), words.end());
    return succeed(flags).json()["token_ids"].get<Ids>();
  };
  const Ids mixed = ids({"--kv-dtype", "k8v4"});
  EXPECT_EQ(mixed.size(), 20u);
  EXPECT_EQ(ids({"-ctk", "q8_0", "-ctv", "q4_0"}), mixed);
}

TEST(Run, SampledTextDependsOnTheSeedAlone) {
  const auto sample = [](const std::string& seed, std::vector<std::string> more) {
    std::vector<std::string> arguments{
        "run", kModel,    "-p", "Once upon", "-n", "40",    "--temperature",
        "1",   "--top-k", "50", "--seed",    seed, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return succeed(arguments).json()["token_ids"].get<Ids>();
  };
  const Ids first = sample("7", {});
  EXPECT_EQ(sample("7", {}), first);
  EXPECT_EQ(sample("7", {"--percent", "0", "0", "0", "0", "0", "0"}), first);
  EXPECT_NE(sample("8", {}), first);
}

TEST(Run, GrammarsHoldTheText) {
  const std::string grammar = "root ::= \" \" (\"yes\" | \"no\") [.!]{2}";
  const TemporaryFolder folder;
  const std::string path = folder.path("answer.gbnf");
  write_file(path, grammar + "\n");
  for (const std::vector<std::string>& given :
       {std::vector<std::string>{"--grammar", grammar}, {"--grammar-file", path}}) {
    std::vector<std::string> arguments{"run", kModel, "-p", "Once", "-n", "40", "--json"};
    arguments.insert(arguments.end(), given.begin(), given.end());
    const auto json = succeed(arguments).json();
    const auto text = json["text"].get<std::string>();
    EXPECT_TRUE(text.starts_with(" yes") || text.starts_with(" no")) << text;
    EXPECT_EQ(text.find_last_of("esno") + 3, text.size()) << text;
    EXPECT_EQ(json["finish_reason"], "stop");
  }
}

TEST(Run, SamplersBeyondTopP) {
  const auto ids = [](const std::vector<std::string>& more, const char* tokens = "40") {
    std::vector<std::string> arguments{"run",  kModel,   "-p", "Once upon",    "-n",
                                       tokens, "--seed", "3",  "--ignore-eos", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return succeed(arguments).json()["token_ids"].get<Ids>();
  };
  const Ids drawn = ids({"--temperature", "1"});
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--typical-p", "0.3"},
        {"--top-n-sigma", "1"},
        {"--xtc-probability", "1", "--xtc-threshold", "0.05"},
        {"--mirostat", "1", "--mirostat-tau", "1"},
        {"--mirostat", "2", "--mirostat-tau", "2", "--mirostat-eta", "0.3"}}) {
    EXPECT_EQ(ids(more), ids({})) << "greedy: " << more[0];
    auto hot = more;
    hot.insert(hot.end(), {"--temperature", "1"});
    EXPECT_NE(ids(hot), drawn) << more[0];
    EXPECT_EQ(ids(hot), ids(hot)) << more[0];
  }
  // Greedy text of a small model repeats itself; with DRY no four tokens come twice.
  const auto repeats = [](const Ids& tokens) {
    std::set<Ids> seen;
    for (size_t i = 0; i + 4 <= tokens.size(); ++i)
      if (!seen.insert(Ids(tokens.begin() + static_cast<int64_t>(i),
                           tokens.begin() + static_cast<int64_t>(i + 4)))
               .second)
        return true;
    return false;
  };
  EXPECT_TRUE(repeats(ids({}, "150")));
  EXPECT_FALSE(repeats(ids({"--dry-multiplier", "20", "--dry-sequence-breaker", "none"}, "150")));
}

TEST(Run, LogprobsListTheChosenTokenAndTheLikeliest) {
  const auto json =
      succeed({"run", kModel, "-p", "Once", "-n", "5", "--logprobs", "3", "--json"}).json();
  ASSERT_EQ(json["logprobs"].size(), 5u);
  std::string text;
  for (size_t i = 0; i < 5; ++i) {
    const auto& token = json["logprobs"][i];
    EXPECT_EQ(token["id"], json["token_ids"][i]);
    ASSERT_EQ(token["top"].size(), 3u);
    EXPECT_EQ(token["top"][0]["id"], token["id"]) << "greedy";
    EXPECT_EQ(token["top"][0]["logprob"], token["logprob"]);
    EXPECT_GE(token["top"][0]["logprob"].get<double>(), token["top"][1]["logprob"].get<double>());
    EXPECT_GE(token["top"][1]["logprob"].get<double>(), token["top"][2]["logprob"].get<double>());
    EXPECT_LT(token["logprob"].get<double>(), 0);
    text += token["token"].get<std::string>();
  }
  EXPECT_EQ(text, json["text"]);
}

TEST(Run, ADryRunPrintsThePlanOnly) {
  const std::vector<std::string> dry{"run", kModel, "-p", "Once", "--dry-run", "--json"};
  auto tight = dry;
  tight.insert(tight.end(), {"--cpu-mem", smallest_budget(dry)});
  const auto json = succeed(tight).json();
  EXPECT_LE(json["planned_bytes"].get<int64_t>(), json["budget_bytes"].get<int64_t>());
  EXPECT_GT(json["streamed_bytes_per_pass"].get<int64_t>(), 0);
  EXPECT_FALSE(json.contains("text"));
  EXPECT_EQ(succeed(dry).json()["streamed_bytes_per_pass"], 0);
  EXPECT_NE(succeed({"run", kModel, "-p", "Once", "--dry-run"}).out.find("weights 100% memory"),
            std::string::npos);
}

TEST(Run, TheTraceHoldsEveryTask) {
  const TemporaryFolder folder;
  const auto stats = succeed({"run", kModel, "-p", "Once", "-n", "4", "--json", "--percent", "50",
                              "0", "100", "0", "100", "0", "--trace", folder.path("trace.json")})
                         .json()["stats"];
  const auto trace = nlohmann::json::parse(read_file(folder.path("trace.json")));
  const auto& events = trace.is_array() ? trace : trace["traceEvents"];
  int64_t computed = 0, transferred = 0;
  std::map<int64_t, double> ended;  // by thread: slices of one don't overlap
  std::map<int64_t, std::string> names;
  for (const auto& event : events) {
    if (event["ph"] == "M" && event["name"] == "thread_name") {
      EXPECT_TRUE(names.emplace(event["tid"].get<int64_t>(), event["args"]["name"]).second);
    }
    if (event["ph"] != "X") continue;
    computed += event["cat"] == "device compute";
    transferred += event["cat"] == "disk read";
    double& end = ended[event["tid"].get<int64_t>()];
    EXPECT_GE(event["ts"].get<double>(), end - 0.11) << event;  // times are rounded
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
  for (const auto& [thread, end] : ended) EXPECT_TRUE(names.contains(thread)) << thread;
  EXPECT_EQ(computed, stats["lanes"]["device compute"]["tasks"].get<int64_t>());
  EXPECT_EQ(transferred, stats["lanes"]["disk read"]["tasks"].get<int64_t>());
  EXPECT_GT(transferred, 0);
}

TEST(Run, CtrlCEndsCleanly) {
  // Streams everything at every token, so that there is time before the end.
  for (int attempt = 0;; ++attempt) {
    Command command({"run", kModel, "-p", "Once upon a time", "-n", "480", "--ignore-eos",
                     "--percent", "0", "0", "0", "0", "0", "0"});
    if (command.wait_until([&] { return !command.output_so_far().empty(); })) command.send(SIGINT);
    const Outcome outcome = command.wait();
    if (outcome.exit_code == 0 && attempt < 5) continue;  // it was done already
    EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
    EXPECT_EQ(outcome.signal, 0);
    ASSERT_FALSE(outcome.out.empty());
    EXPECT_EQ(outcome.out[0], ',') << outcome.out;
    return;
  }
}

TEST(Run, BeamsAndGuidesThroughTheCommandLine) {
  const std::string model = fixture_model("stories260k");
  const auto beams =
      succeed({"run", model, "-p", "Once upon a time", "-n", "8", "--beams", "3", "--json"}).json();
  ASSERT_EQ(beams["beams"].size(), 3u);
  EXPECT_EQ(beams["text"], beams["beams"][0]["text"]);
  EXPECT_GE(beams["beams"][0]["score"], beams["beams"][2]["score"]);
  const auto guided =
      succeed({"run", model, "-p", "Once", "-n", "60", "--json", "--json-schema",
               R"({"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]})"})
          .json();
  EXPECT_TRUE(nlohmann::json::parse(guided["text"].get<std::string>())["a"].is_boolean());
  const auto choice =
      succeed({"run", model, "-p", "Once", "--choice", "red", "--choice", "blue", "--json"}).json();
  EXPECT_TRUE(choice["text"] == "red" || choice["text"] == "blue");
}

}  // namespace
}  // namespace sluice::testing
