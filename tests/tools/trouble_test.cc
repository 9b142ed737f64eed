// Ordinary trouble with files and folders: another user's, missing, looping, failing. Each is exit
// code 3 with what and where; exit code 70 is for bugs alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/tools/command.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Exit code 3, and every word said.
void trouble(const Words& arguments, const Command::Options& options, const Words& words) {
  const Outcome outcome = sluice(arguments, options);
  EXPECT_EQ(outcome.exit_code, 3) << arguments.front() << ": " << outcome.err;
  for (const std::string& word : words)
    EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in: " << outcome.err;
  EXPECT_EQ(outcome.err.find("bug in sluice"), std::string::npos) << outcome.err;
}

// The program run by a user without rights; needs to be root itself.
Outcome as_nobody(Words arguments, Command::Options options) {
  options.program = "/usr/bin/setpriv";
  const Words user{"--reuid=65534", "--regid=65534", "--clear-groups", SLUICE_PROGRAM};
  arguments.insert(arguments.begin(), user.begin(), user.end());
  return sluice(arguments, options);
}

TEST(Trouble, ATemporaryFolderThatIsNotThere) {
  const Command::Options options{.environment = {"TMPDIR=/nowhere/tmp"}};
  EXPECT_EQ(sluice({"version"}, options).exit_code, 0);
  EXPECT_EQ(sluice({"run", "--help"}, options).exit_code, 0);
  EXPECT_EQ(sluice({"inspect", kModel}, options).exit_code, 0);
  trouble({"doctor", "--no-speed"}, options, {"/nowhere/tmp", "TMPDIR"});
  // Only where something is written there: here KV goes to disk.
  trouble({"run", kModel, "-p", "Once", "-n", "2", "--percent", "100", "0", "0", "0", "100", "0"},
          options, {"/nowhere/tmp", "TMPDIR"});
}

TEST(Trouble, TextFilesThatFailWhenTheyAreRead) {
  const TemporaryFolder folder;
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const std::string model = folder.path(name);
    copy_model("stories260k", model);
    fs::remove(fs::path(model) / name);
    fs::create_symlink("/proc/self/mem", fs::path(model) / name);  // EIO at offset 0
    trouble({"run", model, "-p", "Once", "-n", "2"}, {}, {name, "Input/output error"});
  }
  trouble({"run", kModel, "-f", "/proc/self/mem"}, {}, {"/proc/self/mem", "Input/output error"});
}

TEST(Trouble, LoopsOfLinksAndNamesTooLong) {
  const TemporaryFolder folder;
  fs::create_symlink("loop", folder.path("loop"));
  trouble({"inspect", folder.path("loop")}, {}, {"loop", "symbolic link"});
  trouble({"tokenize", folder.path("loop"), "-p", "a"}, {}, {"loop", "symbolic link"});
  const std::string name(300, 'n');
  for (const Words& arguments :
       {Words{"inspect", name}, Words{"run", name, "-p", "a"}, Words{"tokenize", name, "-p", "a"},
        Words{"convert", kModel, folder.path(name)}, Words{"synth", name, folder.path("out")},
        Words{"synth", "opt-125m", folder.path(name), "--weights", "int4"},
        Words{"run", kModel, "-p", "a", "--policy", name},
        Words{"run", kModel, "-p", "a", "--hardware", name},
        Words{"plan", name, "--hardware", "t4"}})
    trouble(arguments, {}, {"nnnn", "too long"});
  const std::string model = folder.path("model");
  copy_model("stories260k", model);
  fs::remove(fs::path(model) / "tokenizer_config.json");
  fs::create_symlink("tokenizer_config.json", fs::path(model) / "tokenizer_config.json");
  trouble({"run", model, "-p", "Once"}, {}, {"tokenizer_config.json", "symbolic link"});
}

TEST(Trouble, FilesWithoutAnEndAreReadToABound) {
  for (const Words& arguments : {Words{"--policy", "/dev/zero"}, Words{"--hardware", "/dev/zero"},
                                 Words{"--json-schema-file", "/dev/zero"}}) {
    Words whole{"run", kModel, "-p", "a"};
    whole.insert(whole.end(), arguments.begin(), arguments.end());
    trouble(whole, {}, {"/dev/zero", "more than 16.0MiB"});
  }
  trouble({"chat", kModel, "--chat-template", "/dev/zero"}, {}, {"/dev/zero", "more than"});
  trouble({"plan", "/dev/zero", "--hardware", "t4"}, {}, {"/dev/zero", "more than"});
  trouble({"plan", "opt-125m", "--hardware", "/dev/zero"}, {}, {"/dev/zero", "more than"});
  trouble({"synth", "/dev/zero", "/tmp/never"}, {}, {"/dev/zero", "more than"});
  trouble({"tokenize", kModel, "-f", "/dev/zero"}, {}, {"/dev/zero", "more than 256MiB"});
  const TemporaryFolder folder;
  for (const char* name : {"config.json", "tokenizer_config.json", "generation_config.json",
                           "chat_template.jinja", "tokenizer.json"}) {
    const std::string model = folder.path(name);
    copy_model("stories260k", model);
    fs::remove(fs::path(model) / name);
    fs::create_symlink("/dev/zero", fs::path(model) / name);
    const bool is_template = std::string(name) == "chat_template.jinja";
    trouble(is_template ? Words{"chat", model} : Words{"run", model, "-p", "a"}, {},
            {name, "not a regular file"});
  }
}

TEST(Trouble, AModelOfNoNumbers) {
  const TemporaryFolder folder;
  const std::string model = folder.path("model");
  copy_model("stories260k", model);
  std::string bytes = read_file(model + "/model.safetensors");
  for (size_t i = bytes.size() - 4096; i < bytes.size(); ++i) bytes[i] = '\xff';  // f32: NaN
  write_file(model + "/model.safetensors", bytes);
  trouble({"run", model, "-p", "Once", "-n", "2"}, {}, {"NaN", "download the model again"});
}

TEST(Trouble, AnotherUsersFolders) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root, to become another user";
  const TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms::all);
  const std::string closed = folder.path("closed");
  fs::create_directory(closed);
  copy_model("stories260k", closed + "/model");
  fs::permissions(closed, fs::perms::owner_all);
  const Command::Options options{.environment = {"HOME=" + folder.path(), "TMPDIR=/tmp"}};
  if (as_nobody({"version"}, options).exit_code != 0)
    GTEST_SKIP() << "another user can't start the program where it lies";
  const auto denied = [&](const Words& arguments) {
    const Outcome outcome = as_nobody(arguments, options);
    EXPECT_EQ(outcome.exit_code, 3) << arguments.front() << ": " << outcome.err;
    for (const char* word : {"closed", "Permission denied", "check the permissions"})
      EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in: " << outcome.err;
  };
  denied({"run", closed + "/model", "-p", "Once"});
  denied({"inspect", closed + "/model"});
  denied({"tokenize", closed + "/model", "-p", "Once"});
  denied({"convert", kModel, closed + "/store"});
  denied({"synth", "opt-125m", closed + "/new"});
  denied({"synth", "opt-125m", closed + "/new", "--weights", "int4"});
  denied({"run", kModel, "-p", "Once", "--policy", closed + "/policy.json"});
  denied({"run", kModel, "-p", "Once", "--hardware", closed + "/profile.json"});
  denied({"run", kModel, "-f", closed + "/prompt.txt"});
  denied({"batch", kModel, closed + "/in.jsonl", "-o", folder.path("out.jsonl")});
  denied({"plan", closed + "/model", "--hardware", "t4"});
  // A profile that can't be kept is no reason not to run.
  Command::Options elsewhere = options;
  elsewhere.environment = {"HOME=" + closed, "TMPDIR=/tmp"};
  const Outcome outcome = as_nobody({"run", kModel, "-p", "Once upon", "-n", "2"}, elsewhere);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

}  // namespace
}  // namespace sluice::testing
