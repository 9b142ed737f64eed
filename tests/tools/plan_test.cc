// sluice plan and sluice profile: what they answer, and what they refuse.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;

nlohmann::json plan(Words more) {
  Words words{"plan", "--json", "--no-lifts"};
  words.insert(words.end(), more.begin(), more.end());
  return succeed(words).json();
}

TEST(Plan, ChoosesOnlyFormatsThatAreAllowed) {
  const Words question{"--model", "opt-30b", "--hardware", "t4", "--sequences", "8"};
  const auto own = plan(question);
  EXPECT_EQ(own["policy"]["weight_dtype"], "f16");
  Words words = question;
  words.insert(words.end(), {"--allow", "int4-weights,int8-kv"});
  const auto allowed = plan(words);
  EXPECT_EQ(allowed["policy"]["weight_dtype"], "int4-g64");
  EXPECT_GT(allowed["predicted"]["tokens_per_s"].get<double>(),
            own["predicted"]["tokens_per_s"].get<double>());
  words = question;
  words.insert(words.begin(), "plan");
  words.insert(words.end(), {"--allow", "int5-weights"});
  fail(words, 2, {"--allow int5-weights", "int4-weights"});
}

TEST(Plan, CountsTheBytesOfQuantisedWeights) {
  const auto bf16 = plan({"--model", "llama-2-7b", "--hardware", "t4", "--weights", "bf16"});
  const auto int4 = plan({"--model", "llama-2-7b", "--hardware", "t4", "--weights", "int4"});
  EXPECT_EQ(int4["policy"]["weight_dtype"], "int4-g64");
  EXPECT_GT(int4["predicted"]["tokens_per_s"].get<double>(),
            bf16["predicted"]["tokens_per_s"].get<double>());
}

TEST(Plan, AnswersForAMachineThatIsNotHere) {
  const auto json = plan({"--model", "opt-30b", "--hardware", "t4", "--weights", "f16",
                          "--prompt-len", "512", "--gen-len", "32", "--sequences", "64"});
  EXPECT_EQ(json["model"], "opt-30b");
  EXPECT_EQ(json["hardware"], "t4");
  const auto& policy = json["policy"];
  for (const char* kind : {"weights", "kv", "activations"}) {
    double sum = 0;
    for (const char* tier : {"device", "host", "disk"}) sum += policy[kind][tier].get<double>();
    EXPECT_NEAR(sum, 1, 1e-6) << kind;
  }
  for (const char* field : {"micro_batch", "micro_batches", "attention", "weight_dtype", "kv_dtype",
                            "inplace_host_fraction"})
    EXPECT_TRUE(policy.contains(field)) << field;
  const auto& predicted = json["predicted"];
  for (const char* field : {"prefill_s", "decode_s", "prefill_tokens_per_s", "decode_tokens_per_s",
                            "tokens_per_s", "latency_s"})
    EXPECT_GT(predicted[field].get<double>(), 0) << field;
  EXPECT_TRUE(predicted["lanes"].contains(predicted["bottleneck"].get<std::string>()));
  for (const char* tier : {"device", "host", "disk"})
    EXPECT_LE(json["peak_bytes"][tier].get<int64_t>(), json["limits_bytes"][tier].get<int64_t>())
        << tier;
  EXPECT_LT(json["placement_error"].get<double>(), 0.01);
  EXPECT_GT(json["candidates"].get<int64_t>(), 10);
}

TEST(Plan, EveryBuiltInShapeGetsAnAnswer) {
  const std::string names = succeed({"plan", "--list-models"}).out;
  for (const char* name : {"opt-175b", "llama-3.1-405b", "mixtral-8x7b", "qwen2.5-72b",
                           "bloom-176b", "falcon-180b", "deepseek-v3"}) {
    EXPECT_NE(names.find(name), std::string::npos) << name;
    const auto json = plan({name, "--hardware", "h100", "--prompt-len", "64", "--gen-len", "8",
                            "--sequences", "4", "--cpu-mem", "2TiB"});
    EXPECT_GT(json["predicted"]["tokens_per_s"].get<double>(), 0) << name;
  }
}

// Whoever is sent the page reads first that nothing was run, and what is known of the machine.
TEST(Plan, ItsPageSaysWhatItIs) {
  const TemporaryFolder folder;
  const std::string path = folder.path("plan.html");
  const Outcome outcome =
      succeed({"plan", "opt-125m", "--hardware", "laptop-8gb", "--sequences", "1", "--gen-len", "4",
               "--prompt-len", "8", "--no-lifts", "--html", path});
  EXPECT_NE(outcome.err.find(path), std::string::npos) << outcome.err;
  const std::string page = read_file(path);
  EXPECT_LT(page.find("<b>It runs: "), page.find("nothing here was run")) << "the answer first";
  EXPECT_NE(page.find(">tokens/s</text>"), std::string::npos) << "axes say their units";
  const size_t figures = page.find("<details>");
  ASSERT_NE(figures, std::string::npos);
  for (const char* words : {"nothing here was run", "nobody has measured this one"})
    EXPECT_LT(page.find(words), figures) << words;
}

TEST(Plan, ItsPolicyFileIsWhatRunTakes) {
  const TemporaryFolder folder;
  const std::string model = fixture_model("stories260k");
  succeed({"plan", model, "--hardware", "laptop-8gb", "--gpu-mem", "66MiB", "--cpu-mem", "400MiB",
           "--prompt-len", "8", "--gen-len", "8", "--sequences", "2", "--output-policy",
           folder.path("policy.json")});
  const auto run = [&](Words more) {
    Words words{"run", model, "-p", "Once upon a time", "-n", "12", "--temp", "0", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return succeed(words).json();
  };
  const auto planned = run({"--policy", folder.path("policy.json"), "--device",
                            "emulated:mem=128MiB,h2d=0,d2h=0,latency=0us"});
  EXPECT_EQ(planned["token_ids"], run({})["token_ids"]);
}

TEST(Plan, EvaluatesAPolicyFileAsItIs) {
  const TemporaryFolder folder;
  const std::string path = folder.path("policy.json");
  write_file(path,
             R"({"weights": {"device": 0.125, "host": 0.625, "disk": 0.25}, "kv": {"device": 0,
 "host": 1, "disk": 0}, "activations": {"device": 1, "host": 0, "disk": 0}, "attention": "host",
 "inplace_host_fraction": 0.0625, "micro_batch_sequences": 16, "micro_batches": 5,
 "micro_batch_tokens": 333, "pass_tokens": 7777, "page_tokens": 32})");
  const Words question{"--model", "opt-30b", "--hardware", "t4", "--policy", path};
  const auto json = plan(question);
  EXPECT_EQ(json["policy_file"], nlohmann::json::parse(read_file(path)));
  EXPECT_EQ(json["job"]["sequences"], 80) << "its block";
  EXPECT_EQ(json["candidates"], 1);
  EXPECT_TRUE(json["lifts"].is_null());
  Words words{"plan"};
  words.insert(words.end(), question.begin(), question.end());
  EXPECT_EQ(succeed(words).out.find("twice of no single"), std::string::npos)
      << "what nobody searched for is not claimed";
  words.insert(words.end(), {"--gpu-mem", "4GiB"});
  fail(words, 4, {"device memory budget 4.00GiB", "raise --gpu-mem"});
}

TEST(Plan, ABoundThatNoPolicyKeepsIsRefusedWithOneThatSomeKeeps) {
  fail({"plan", "opt-6.7b", "--hardware", "t4", "--sequences", "8", "--objective", "bounded",
        "--latency-bound", "0.01"},
       4, {"no policy answers within", "--latency-bound "});
}

TEST(Plan, CtrlCEndsASearch) {
  Command command({"plan", "llama-3.1-8b", "--hardware", "rtx-4090", "--sequences", "64", "--sweep",
                   "prompt-len=16,100000,100001,100002"});
  ASSERT_TRUE(command.wait_until(
      [&] { return command.output_so_far().find("\n16 ") != std::string::npos; }));
  command.send(SIGINT);
  EXPECT_EQ(command.wait().exit_code, 130);
}

TEST(Plan, TheEmulatedDeviceGivesTheSameTokensAndItsTable) {
  const std::string model = fixture_model("stories260k");
  const Words words{"run", model, "-p", "Once upon a time", "-n", "12", "--temp", "0", "--json"};
  Words three = words;
  for (const char* word : {"--device", "emulated:mem=64MiB,h2d=2GB/s,d2h=2GB/s,latency=5us",
                           "--percent", "20", "30", "0", "50", "50", "50"})
    three.emplace_back(word);
  const auto resident = succeed(words).json();
  const auto streamed = succeed(three).json();
  EXPECT_EQ(streamed["token_ids"], resident["token_ids"]);
  EXPECT_GT(streamed["stats"]["lanes"]["host to device"]["bytes"].get<int64_t>(), 0);
  EXPECT_GT(streamed["stats"]["lanes"]["device to host"]["bytes"].get<int64_t>(), 0);
  EXPECT_GT(streamed["stats"]["peak_bytes"]["host"].get<int64_t>(), 0);
}

TEST(Plan, SweepsGiveARowForEachValue) {
  const auto rows = succeed({"plan", "opt-13b", "--hardware", "rtx-3060", "--sequences", "4",
                             "--gen-len", "4", "--sweep", "gpu-mem=2GiB,6GiB,12GiB", "--json"})
                        .json();
  ASSERT_EQ(rows.size(), 3u);
  double before = 0;
  for (const auto& row : rows) {
    const double rate = row["predicted"]["tokens_per_s"].get<double>();
    EXPECT_GE(rate, before * 0.98);
    before = rate;
  }
}

// Every node's rate is what it has alone; a slower disk makes it the slow one.
TEST(Plan, SeveralNodesAddUp) {
  const Words question{"--model",   "opt-30b", "--prompt-len", "128",
                       "--gen-len", "16",      "--no-lifts"};
  const auto ask = [&](Words more) {
    more.insert(more.begin(), question.begin(), question.end());
    return plan(more);
  };
  const double alone = ask({"--hardware", "t4", "--sequences", "256"})["predicted"]["tokens_per_s"];
  const auto two = ask({"--nodes", "t4,t4:cpu-mem=8GiB:disk-read=50MB/s"});
  EXPECT_NEAR(two["nodes"][0]["tokens_per_s"].get<double>(), alone, 0.01 * alone);
  EXPECT_NEAR(two["rows_per_hour"].get<double>(),
              two["nodes"][0]["rows_per_hour"].get<double>() +
                  two["nodes"][1]["rows_per_hour"].get<double>(),
              1e-6 * two["rows_per_hour"].get<double>());
  EXPECT_EQ(two["slowest"], "t4:cpu-mem=8GiB:disk-read=50MB/s");
  EXPECT_FALSE(two.contains("seconds"));
  const auto job = ask({"--nodes", "t4,t4", "--sequences", "100000"});
  EXPECT_NEAR(job["seconds"].get<double>() * job["rows_per_hour"].get<double>() / 3600, 100000, 1);
  fail({"plan", "opt-6.7b", "--nodes", "t4,nowhere.json"}, 2, {"nowhere.json"});
  fail({"plan", "opt-6.7b", "--nodes", "t4:colour=red"}, 2, {"colour", "cpu-mem"});
  fail({"plan", "opt-6.7b", "--nodes", "t4", "--sweep", "cpu-mem=1GiB"}, 2, {"--sweep", "--nodes"});
}

TEST(Plan, PublishedEquationsAreEvaluatedAsTheyAre) {
  const auto json =
      succeed({"plan", "opt-30b", "--cost-model", "flexgen-code", "--percent", "20", "80", "0",
               "100", "0", "100", "--gpu-batch-size", "48", "--num-gpu-batches", "3", "--json"})
          .json();
  EXPECT_NEAR(json["predicted"]["tokens_per_s"].get<double>(), 7.136, 0.01);
  EXPECT_GE(json["terms"].size(), 10u);
}

TEST(Plan, BadQuestionsAreRefusedByName) {
  const auto refused = [](Words words, int exit_code, const char* says) {
    const Outcome outcome = Command(words).wait();
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
  };
  refused({"plan"}, 2, "no model");
  refused({"plan", "opt-31b", "--hardware", "t4"}, 2, "opt-30b");
  // The size that was asked for, of whatever generation; not what differs by a letter.
  refused({"plan", "llama-70b", "--hardware", "t4"}, 2, "llama-2-70b, llama-3-70b");
  refused({"plan", "meta-llama/Llama-3.1-70B-Instruct"}, 2, "near names: llama-3.1-70b,");
  refused({"plan", "opt-30b", "--hardware", "t5"}, 2, "shipped are t4");
  refused({"plan", "opt-30b", "--hardware", "t4", "--gpu-mem", "-3GiB"}, 2, "--gpu-mem");
  refused({"plan", "opt-30b", "--hardware", "t4", "--prompt-len", "0"}, 2, "--prompt-len");
  refused({"plan", "opt-30b", "--hardware", "t4", "--sequences", "-4"}, 2, "--sequences");
  refused({"plan", "opt-30b", "--hardware", "t4", "--sweep", "noise=1"}, 2, "noise");
  refused({"plan", "opt-30b", "--hardware", "t4", "--sweep", "gpu-mem=8GiB", "--html", "page.html"},
          2, "--html has no effect with --sweep");
  refused({"plan", "opt-30b", "--hardware", "t4", "--sweep", "gpu-mem=8GiB", "--allow", "what"}, 2,
          "--allow what");
  refused({"plan", "opt-30b", "--hardware", "t4", "--cost-model", "flexgen-code", "--html", "p"}, 2,
          "--html has no effect with --cost-model flexgen-code");
  refused({"plan", "opt-30b", "--hardware", "t4", "--simulate-all", "--json"}, 2,
          "--simulate-all has no effect with --json");
  refused({"plan", "opt-175b", "--hardware", "t4", "--sequences", "1", "--cpu-mem", "1GiB"}, 4,
          "host memory is");
  refused({"plan", "opt-175b", "--hardware", "t4", "--sequences", "1", "--gpu-mem", "64MiB"}, 4,
          "device memory is");
  const TemporaryFolder folder;
  auto profile = nlohmann::ordered_json::parse(succeed({"profile", "--show", "t4", "--json"}).out);
  profile["disks"][0]["read_bytes_per_second"] = 0;
  write_file(folder.path("bad.json"), profile.dump());
  refused({"plan", "opt-30b", "--hardware", folder.path("bad.json")}, 2, "disk.read");
  refused({"run", fixture_model("stories260k"), "-p", "x", "--device", "emulated:mem=1GiB,hd2=3"},
          2, "keys are");
  refused({"run", fixture_model("stories260k"), "-p", "x", "--device", "gpu"}, 2, "no such device");
  refused({"run", fixture_model("stories260k"), "-p", "x", "--gpu-mem", "1GiB"}, 2, "--gpu-mem");
}

TEST(Plan, KnowsMachinesWithoutADiskAndWithSeveralDevices) {
  const TemporaryFolder folder;
  auto machine = nlohmann::ordered_json::parse(succeed({"profile", "--show", "t4", "--json"}).out);
  machine["disks"] = nlohmann::ordered_json::array();
  machine["disk_bytes"] = 0;
  auto other = machine["device"];
  other["name"] = "another card";
  machine["more_devices"] = {
      {{"device", other}, {"link", machine["link"]}, {"device_memory_bytes", int64_t{48} << 30}}};
  const std::string file = folder.path("m.json");
  write_file(file, machine.dump());
  const Outcome first = succeed({"plan", "opt-6.7b", "--hardware", file, "--no-lifts"});
  EXPECT_NE(first.out.find("of none"), std::string::npos) << first.out;
  EXPECT_NE(first.err.find("has 2 devices"), std::string::npos) << first.err;
  const Outcome second = succeed({"plan", "opt-6.7b", "--hardware", file, "--gpu", "1", "--json"});
  EXPECT_NE(second.err.find("another card"), std::string::npos) << second.err;
  EXPECT_EQ(nlohmann::json::parse(second.out)["limits_bytes"]["device"], int64_t{48} << 30);
  fail({"plan", "opt-6.7b", "--hardware", file, "--gpu", "2"}, 2, {"no device 2", "0 to 1"});
  fail({"plan", "opt-6.7b", "--hardware", file, "--disk-mem", "1GiB"}, 2, {"has no disk"});
  const Outcome swept =
      sluice({"plan", "opt-6.7b", "--hardware", file, "--sweep", "disk-read=1GB/s"});
  EXPECT_EQ(swept.exit_code, 2);
  EXPECT_NE(swept.err.find("has no disk"), std::string::npos) << swept.err;
  fail({"plan", "opt-175b", "--hardware", file}, 4, {"no disk", "--cpu-mem"});
  EXPECT_NE(succeed({"profile", "--show", file}).out.find("no disk"), std::string::npos);
}

// The model's file lies on the machine's disk; what is offloaded has the rest.
TEST(Plan, TheDiskHoldsTheModelsFileFirst) {
  const TemporaryFolder folder;
  auto machine = nlohmann::ordered_json::parse(succeed({"profile", "--show", "t4", "--json"}).out);
  const auto asked = [&](int64_t gib, std::vector<std::string> more) {
    machine["disk_bytes"] = gib << 30;
    write_file(folder.path("m.json"), machine.dump());
    std::vector<std::string> words{"plan",       "opt-30b",     "--hardware", folder.path("m.json"),
                                   "--no-lifts", "--sequences", "8"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const auto planned = [&](int64_t gib, std::vector<std::string> more) {
    more.push_back("--json");
    return nlohmann::json::parse(succeed(asked(gib, more)).out);
  };
  // 55.8 GiB of f16, of which half is streamed.
  const std::vector<std::string> little{"--cpu-mem", "20GiB"};
  const auto roomy = planned(100, little);
  const auto left = roomy["limits_bytes"]["disk"].get<int64_t>();
  EXPECT_NEAR(static_cast<double>(left), 44.2 * (1 << 30), 0.2 * (1 << 30));
  EXPECT_GT(roomy["policy"]["weights"]["disk"].get<double>(), 0.2);
  const auto bounded = planned(100, {"--cpu-mem", "20GiB", "--disk-mem", "10GiB"});
  EXPECT_EQ(bounded["limits_bytes"]["disk"], int64_t{10} << 30);
  EXPECT_LE(bounded["peak_bytes"]["disk"].get<int64_t>(), int64_t{10} << 30);
  const std::string text = succeed(asked(100, {"--cpu-mem", "20GiB", "--disk-mem", "10GiB"})).out;
  EXPECT_NE(text.find(" of 10.0GiB"), std::string::npos) << text;
  EXPECT_NE(text.find("the weights there are the model's file"), std::string::npos) << text;
  // A disk that is smaller than the file: all in memory, or nowhere.
  EXPECT_EQ(planned(50, {"--cpu-mem", "100GiB"})["policy"]["weights"]["disk"], 0);
  fail(asked(50, little), 4, {"55.8GiB of weights", "disk, which has 50.0GiB", "smaller format"});
}

TEST(Plan, SequencesBeyondTheModelsPositionsAreSaid) {
  const auto asked = [](const char* model, const char* prompt) {
    return std::vector<std::string>{"plan", model,        "--hardware", "rtx-4090", "--sequences",
                                    "1",    "--no-lifts", "--weights",  "int4",     "--prompt-len",
                                    prompt, "--gen-len",  "48"};
  };
  // Learned positions: there is no row for the next one.
  succeed(asked("opt-30b", "2000"));
  fail(asked("opt-30b", "2001"), 2, {"has 2048 positions", "2049 tokens", "--prompt-len"});
  // Rotary ones turn on, into what the model has not seen.
  EXPECT_EQ(succeed(asked("llama-2-70b", "4048")).err.find("positions"), std::string::npos);
  const std::string beyond = succeed(asked("llama-2-70b", "4049")).err;
  EXPECT_NE(beyond.find("made for 4096 positions, and a sequence of the job has 4097"),
            std::string::npos)
      << beyond;
}

TEST(Plan, TheTotalIsTheWholeJobs) {
  const auto one = plan({"--model", "opt-30b", "--hardware", "t4", "--sequences", "40",
                         "--gpu-batch-size", "40", "--num-gpu-batches", "1", "--no-lifts"});
  const auto three = plan({"--model", "opt-30b", "--hardware", "t4", "--sequences", "120",
                           "--gpu-batch-size", "40", "--num-gpu-batches", "1", "--no-lifts"});
  EXPECT_EQ(three["predicted"]["block_sequences"], 40);
  const double seconds = three["predicted"]["job_s"];
  EXPECT_NEAR(seconds, 3 * three["predicted"]["latency_s"].get<double>(), 1e-6 * seconds);
  EXPECT_NEAR(three["predicted"]["tokens_per_s"].get<double>(), 120 * 32 / seconds, 1e-6);
  EXPECT_NEAR(one["predicted"]["job_s"].get<double>(), one["predicted"]["latency_s"].get<double>(),
              1e-6);
  const std::string text =
      succeed({"plan", "opt-30b", "--hardware", "t4", "--sequences", "120", "--gpu-batch-size",
               "40", "--num-gpu-batches", "1", "--no-lifts"})
          .out;
  EXPECT_NE(text.find("generated tokens/s, 3 blocks, "), std::string::npos) << text;
}

TEST(Profile, ListsAndShowsTheShippedOnes) {
  const std::string names = succeed({"profile", "--list"}).out;
  for (const char* name : {"t4", "flexgen-t4", "rtx-3060", "h200", "laptop-8gb"})
    EXPECT_NE(names.find(name), std::string::npos) << name;
  const std::string text = succeed({"profile", "--show", "rtx-4090"}).out;
  EXPECT_NE(text.find("data sheet"), std::string::npos);
}

}  // namespace
}  // namespace sluice::testing
