// What users get wrong: an exit code by kind, and a message that names what, where and how to mend.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

using Words = std::vector<std::string>;

Words run_with(Words more, const std::string& model = kModel) {
  Words out{"run", model, "-n", "4"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST(RunErrors, APromptThatIsNotUtf8NamesTheByte) {
  fail(run_with({"-p", "caf\xc3"}), 2, {"not UTF-8", "byte 3", "save it as UTF-8"});
  const TemporaryFolder folder;
  write_file(folder.path("latin1.txt"), "d\xe9j\xe0 vu");
  fail(run_with({"-f", folder.path("latin1.txt")}), 2, {"not UTF-8", "byte 1"});
}

TEST(RunErrors, APromptWithoutTokens) {
  fail(run_with({"-p", "", "--no-special"}), 2, {"prompt 1", "empty", "at least one token"});
  fail(run_with({"--prompt-ids", ""}), 2, {"prompt 1", "empty"});
  fail(run_with({}), 2, {"no prompt", "-p TEXT", "--prompt-ids"});
}

TEST(RunErrors, APromptLongerThanTheContext) {
  std::string prompt;
  for (int i = 0; i < 200; ++i) prompt += "Once upon a time ";
  fail(run_with({"-p", prompt}), 2, {"prompt 1", "tokens", "512", "shorten"});
  fail(run_with({"-p", "Once upon a time", "-c", "3"}), 2, {"5 tokens", "holds 3", "--ctx-size"});
}

TEST(RunErrors, BeamsAndGuides) {
  const auto with = [](Words more) {
    more.insert(more.begin(), {"-p", "Once"});
    return run_with(more);
  };
  fail(with({"--beams", "100"}), 2, {"num_beams is 100", "64"});
  fail(with({"--beams", "2", "--stop", "x"}), 2, {"stop strings", "stop_token_ids"});
  fail(with({"--early-stopping", "soon"}), 2, {"--early-stopping", "never"});
  fail(with({"--regex", "(a"}), 2, {"(a", "byte 2"});
  fail(with({"--grammar", "root ::= \"a\"\nb ::= c"}), 2, {"\"c\"", "line 2, column 7"});
  fail(with({"--grammar-file", "/nowhere.gbnf"}), 3, {"/nowhere.gbnf"});
  fail(with({"--grammar", "root ::= \"a\"", "--regex", "b"}), 2, {"--grammar", "--regex"});
  fail(with({"--json-schema", R"({"type": "objekt"})"}), 2, {"objekt"});
  fail(with({"--json-schema", "{"}), 2, {"not valid JSON"});
  fail(with({"--json-schema-file", "/nowhere.json"}), 3, {"/nowhere.json"});
  fail(with({"--regex", "a", "--choice", "b"}), 2, {"--regex"});
}

TEST(RunErrors, BadTokenIds) {
  fail(run_with({"--prompt-ids", "1,512"}), 2, {"token id 512", "512"});
  fail(run_with({"--prompt-ids", "1,x"}), 2, {"--prompt-ids", "\"x\"", "1,2,3"});
  fail(run_with({"--prompt-ids", "1,-3"}), 2, {"--prompt-ids", "-3"});
  fail(run_with({"--prompt-ids", "99999999999999"}), 2, {"--prompt-ids", "99999999999999"});
}

TEST(RunErrors, ABudgetTooSmallForOneLayerSaysWhatItWouldTake) {
  const Outcome outcome = fail(run_with({"-p", "Once", "--cpu-mem", "100KiB"}), 4,
                               {"100KiB", "weight ring", "KV", "workspace", "raise --cpu-mem to"});
  // The size it names must be enough.
  const std::string mark = "raise --cpu-mem to ";
  const size_t at = outcome.err.find(mark) + mark.size();
  const std::string size = outcome.err.substr(at, outcome.err.find(',', at) - at);
  EXPECT_EQ(succeed(run_with({"-p", "Once", "--cpu-mem", size})).out, " upon a time,\n") << size;
}

TEST(RunErrors, BadSizesAndSettings) {
  fail(run_with({"-p", "a", "--cpu-mem", "banana"}), 2, {"--cpu-mem", "banana", "16GiB"});
  fail(run_with({"-p", "a", "--cpu-mem", "-1GiB"}), 2, {"--cpu-mem", "-1GiB"});
  fail(run_with({"-p", "a", "--temperature", "-1"}), 2, {"temperature", "-1", "0 to 100"});
  fail(run_with({"-p", "a", "--top-p", "1.5"}), 2, {"top_p", "1.5", "0 to 1"});
  fail(run_with({"-p", "a", "--mirostat", "3"}), 2, {"mirostat", "3", "1 or 2"});
  fail(run_with({"-p", "a", "--mirostat", "1", "--num-beams", "2"}), 2, {"mirostat", "beam"});
  fail(run_with({"-p", "a", "--dry-base", "0.5"}), 2, {"dry_base", "0.5", "1 to 100"});
  fail({"run", kModel, "-p", "a", "-n", "0"}, 2, {"max_tokens", "1 or more"});
  fail({"run", kModel, "-p", "a", "-n", "many"}, 2, {"many"});
  fail(run_with({"-p", "a", "--kv-dtype", "int3"}), 2, {"--kv-dtype", "int3"});
  fail(run_with({"-p", "a", "--cpu-isa", "mmx"}), 2, {"--cpu-isa", "mmx", "avx2"});
  fail(run_with({"-p", "a", "--threads", "-2"}), 2, {"threads"});
  fail(run_with({"-p", "a", "-ngl", "99"}), 2, {"--n-gpu-layers", "--cpu-mem"});
}

TEST(RunErrors, BadPercentages) {
  fail(run_with({"-p", "a", "--percent", "50", "50", "100"}), 2, {"--percent", "6"});
  fail(run_with({"-p", "a", "--percent", "101", "0", "100", "0", "100", "0"}), 2,
       {"--percent", "weights"});
  fail(run_with({"-p", "a", "--percent", "100", "0", "60", "60", "100", "0"}), 2,
       {"--percent", "KV"});
  fail(run_with({"-p", "a", "--percent", "100", "0", "100", "0", "x", "0"}), 2, {"--percent", "x"});
  fail(run_with({"-p", "a", "--percent", "nan", "0", "100", "0", "100", "0"}), 2, {"--percent"});
}

TEST(RunErrors, BadPolicyFiles) {
  const TemporaryFolder folder;
  const std::string path = folder.path("policy.json");
  const auto refused = [&](const std::string& text, Words words) {
    write_file(path, text);
    fail(run_with({"-p", "a", "--policy", path}), 2, words);
  };
  refused("{", {path, "JSON"});
  refused("", {path, "JSON"});
  refused(R"({"weihgts": {}})", {path, "weihgts"});
  refused(R"({"weights": {"device": 0.5, "host": 0, "disk": 0.1}})", {"weights"});
  refused(R"({"weights": {"device": 2, "host": 0, "disk": -1}})", {"weights"});
  refused(R"({"kv": 7})", {path, "kv"});
  refused(R"({"micro_batches": 0})", {"micro_batches", "0"});
  refused(R"({"micro_batches": "two"})", {path, "micro_batches"});
  fail(run_with({"-p", "a", "--policy", folder.path("none.json")}), 3,
       {"none.json", "No such file"});
  write_file(path, "{}");
  fail(run_with({"-p", "a", "--policy", path, "--percent", "1", "0", "1", "0", "1", "0"}), 2,
       {"--policy", "--percent", "one of them"});
}

TEST(RunErrors, AMissingModelIsCalledMissing) {
  const TemporaryFolder folder;
  for (const Words& prompt : {Words{"-p", "a"}, Words{"--prompt-ids", "1"}})
    fail(run_with(prompt, folder.path("nowhere")), 3, {folder.path("nowhere"), "no such file"});
  fail(run_with({"--prompt-ids", "1"}, folder.path()), 3,
       {folder.path(), "no model weights", "Hugging Face"});
  fail(run_with({"-p", "a"}, fixture_model("opt-tiny-bin")), 3, {"no tokenizer", "--prompt-ids"});
  fail({"run", "-p", "a"}, 2, {"--model is required", "--help"});
}

TEST(RunErrors, ADamagedModelNamesTheFile) {
  const TemporaryFolder folder;
  const Words ids{"--prompt-ids", "1,5"};
  copy_model("stories260k", folder.path("no_config"));
  std::filesystem::remove(folder.path("no_config/config.json"));
  fail(run_with(ids, folder.path("no_config")), 3, {"config.json", "missing"});
  fail(run_with({"-p", "Once"}, folder.path("no_config")), 3, {"config.json", "missing"});

  copy_model("llama-tiny-sharded", folder.path("no_shard"));
  std::filesystem::remove(folder.path("no_shard/model-00002-of-00003.safetensors"));
  fail(run_with(ids, folder.path("no_shard")), 3,
       {"model-00002-of-00003.safetensors", "missing", "download"});

  copy_model("stories260k", folder.path("short_header"));
  std::filesystem::resize_file(folder.path("short_header/model.safetensors"), 200);
  fail(run_with(ids, folder.path("short_header")), 3,
       {"model.safetensors", "header", "cut short or damaged"});

  copy_model("stories260k", folder.path("short_data"));
  std::filesystem::resize_file(folder.path("short_data/model.safetensors"), 500000);
  fail(run_with(ids, folder.path("short_data")), 3, {"model.safetensors"});

  copy_model("stories260k", folder.path("bad_config"));
  write_file(folder.path("bad_config/config.json"), "{\"model_type\": \"llama\"");
  fail(run_with(ids, folder.path("bad_config")), 3, {"config.json"});

  copy_model("stories260k", folder.path("other_shape"));
  std::string config = read_file(folder.path("other_shape/config.json"));
  config.replace(config.find("\"hidden_size\": 64"), 17, "\"hidden_size\": 96");
  write_file(folder.path("other_shape/config.json"), config);
  fail(run_with(ids, folder.path("other_shape")), 3, {"embed_tokens", "64"});

  copy_model("stories260k", folder.path("bad_tokenizer"));
  write_file(folder.path("bad_tokenizer/tokenizer.json"), "[1, 2");
  fail(run_with({"-p", "Once"}, folder.path("bad_tokenizer")), 3, {"tokenizer.json"});
}

TEST(RunErrors, OffloadFoldersThatCannotBeWritten) {
  const Words all_on_disk{"-p", "Once", "--percent", "0", "0", "0", "0", "0", "0", "--offload-dir"};
  const auto with_folder = [&](const std::string& path) {
    Words words = all_on_disk;
    words.push_back(path);
    return run_with(words);
  };
  const TemporaryFolder folder;
  fail(with_folder(folder.path("none")), 3, {folder.path("none"), "check the path"});
  write_file(folder.path("file"), "");
  fail(with_folder(folder.path("file")), 3, {folder.path("file")});
  fail(with_folder("/proc"), 3, {"/proc"});  // nobody can make files there, root neither
  if (geteuid() != 0) {
    chmod(folder.path().c_str(), 0555);
    fail(with_folder(folder.path()), 3, {folder.path()});
    chmod(folder.path().c_str(), 0755);
  }
  // A policy that keeps everything in memory needs no such folder.
  EXPECT_EQ(succeed(run_with({"-p", "Once", "--offload-dir", folder.path("none")})).out,
            " upon a time,\n");
}

TEST(RunErrors, ADiskBudgetIsHard) {
  fail(run_with({"-p", "Once", "--percent", "0", "0", "0", "0", "0", "0", "--disk-mem", "4KiB"}), 4,
       {"disk", "4.00KiB"});
}

}  // namespace
}  // namespace sluice::testing
