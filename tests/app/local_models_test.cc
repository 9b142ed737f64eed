// Folders as Hugging Face's cache, Ollama and LM Studio make them, whole and broken.
#include "src/app/local_models.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "src/base/error.h"

namespace sluice::app {
namespace {
namespace fs = std::filesystem;

const std::string kDigest(64, 'a');

class LocalModels : public ::testing::Test {
 protected:
  LocalModels()
      : root_(fs::temp_directory_path() /
              ("sluice_local_models_" + std::to_string(getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(root_);
    fs::create_directories(root_);
    folders_.hugging_face = {root_ / "hub"};
    folders_.ollama = {root_ / "ollama"};
    folders_.lm_studio = {root_ / "lm"};
  }
  ~LocalModels() override {
    std::error_code ignored;
    fs::permissions(root_ / "hub" / "models--closed--door", fs::perms::owner_all, ignored);
    fs::remove_all(root_, ignored);
  }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << text;
  }
  // A repository of the hub: files are links to blobs, as the cache has them.
  fs::path repository(const std::string& folder, const std::string& commit,
                      const std::vector<std::string>& files,
                      const std::string& reference = "main") {
    const fs::path base = fs::path("hub") / folder;
    if (!reference.empty()) write(base / "refs" / reference, commit);
    const fs::path snapshot = base / "snapshots" / commit;
    fs::create_directories(root_ / snapshot);
    for (const std::string& file : files) {
      const std::string blob = commit + "-" + std::to_string(blobs_++);
      write(base / "blobs" / blob, "0123456789");
      fs::create_directories((root_ / snapshot / file).parent_path());
      fs::create_symlink(root_ / base / "blobs" / blob, root_ / snapshot / file);
    }
    return root_ / snapshot;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const LocalModel& model : local_models(folders_)) out.push_back(model.name);
    return out;
  }
  LocalModel only() const {
    const std::vector<LocalModel> all = local_models(folders_);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? LocalModel{} : all.front();
  }
  std::string refusal(const std::string& given, ErrorKind kind) const {
    try {
      find_model(given, folders_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    ADD_FAILURE() << given << " was found";
    return "";
  }

  fs::path root_;
  ModelFolders folders_;
  int blobs_ = 0;
};

TEST_F(LocalModels, FoldersThatAreNotThereAreEmpty) {
  EXPECT_TRUE(local_models(folders_).empty());
  EXPECT_TRUE(local_models({}).empty());
  EXPECT_EQ(find_model("Qwen/Qwen2.5-7B", folders_), "Qwen/Qwen2.5-7B") << "stays for the opener";
}

TEST_F(LocalModels, ARepositoryOfTheHubIsFoundByName) {
  const fs::path snapshot =
      repository("models--Qwen--Qwen2.5-7B-Instruct", "abc1", {"config.json", "model.safetensors"});
  const LocalModel model = only();
  EXPECT_EQ(model.name, "Qwen/Qwen2.5-7B-Instruct");
  EXPECT_EQ(model.path, snapshot);
  EXPECT_EQ(model.weight_bytes, 10);
  EXPECT_EQ(model.problem, "");
  EXPECT_EQ(model.origin, ModelOrigin::kHuggingFace);
  for (const char* given :
       {"Qwen/Qwen2.5-7B-Instruct", "qwen/qwen2.5-7b-instruct", "Qwen2.5-7B-Instruct"})
    EXPECT_EQ(find_model(given, folders_), snapshot) << given;
}

TEST_F(LocalModels, OldNamesHaveNoOrganisation) {
  const fs::path snapshot =
      repository("models--gpt2", "abc1", {"config.json", "model.safetensors"});
  EXPECT_EQ(only().name, "gpt2");
  EXPECT_EQ(find_model("gpt2", folders_), snapshot);
}

TEST_F(LocalModels, MainIsTakenAndOtherRevisionsByName) {
  const std::vector<std::string> files = {"config.json", "model.safetensors"};
  const fs::path old = repository("models--a--b", "1111", files, "refs/pr/1");
  const fs::path now = repository("models--a--b", "2222", files);
  EXPECT_EQ(only().path, now);
  EXPECT_EQ(find_model("a/b", folders_), now);
  EXPECT_EQ(find_model("A/b@1111", folders_), old);
  EXPECT_EQ(find_model("a/b@11", folders_), old) << "a commit's beginning";
  EXPECT_EQ(find_model("a/b@refs/pr/1", folders_), old);
  EXPECT_EQ(find_model("a/b@main", folders_), now);
  EXPECT_NE(refusal("a/b@3", ErrorKind::kFile).find("revision 3 is not"), std::string::npos);
  EXPECT_NE(refusal("a/b@../../x", ErrorKind::kFile).find("is not"), std::string::npos);
}

TEST_F(LocalModels, WithoutMainTheNewestSnapshotIsTaken) {
  const std::vector<std::string> files = {"config.json", "model.safetensors"};
  const fs::path old = repository("models--a--b", "2222", files, "");
  const fs::path now = repository("models--a--b", "1111", files, "");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(only().path, now);
}

TEST_F(LocalModels, WhatIsIncompleteSaysSo) {
  const fs::path snapshot =
      repository("models--a--sharded", "abc1", {"config.json", "model-00001-of-00003.safetensors"});
  std::ofstream(snapshot / "model.safetensors.index.json")
      << R"({"weight_map": {"x": "model-00001-of-00003.safetensors",
             "y": "model-00002-of-00003.safetensors", "z": "model-00003-of-00003.safetensors"}})";
  EXPECT_EQ(only().problem, "2 of 3 weight files are not there");
  EXPECT_NE(refusal("a/sharded", ErrorKind::kFile).find("2 of 3"), std::string::npos);
  fs::remove(snapshot / "model.safetensors.index.json");
  fs::remove(snapshot / "model-00001-of-00003.safetensors");
  EXPECT_EQ(only().problem, "its weights are not there");
}

TEST_F(LocalModels, ALinkToABlobThatIsGoneIsNoFile) {
  const fs::path snapshot =
      repository("models--a--b", "abc1", {"config.json", "model.safetensors"});
  fs::remove(fs::read_symlink(snapshot / "model.safetensors"));
  EXPECT_EQ(only().problem, "1 of 1 weight files are not there");
}

TEST_F(LocalModels, TokenizersAndDatasetsAreNoModels) {
  repository("models--a--tokenizer", "abc1", {"tokenizer.json"});
  repository("datasets--a--texts", "abc1", {"config.json", "model.safetensors"});
  EXPECT_TRUE(names().empty());
}

TEST_F(LocalModels, EachGgufFileIsAModel) {
  const fs::path snapshot =
      repository("models--bart--M-GGUF", "abc1",
                 {"M-Q4_K_M.gguf", "M-Q8_0-00001-of-00002.gguf", "M-Q8_0-00002-of-00002.gguf",
                  "mmproj-M-f16.gguf", "M-IQ2_XS-00001-of-00002.gguf"});
  EXPECT_EQ(names(), (std::vector<std::string>{"bart/M-GGUF:IQ2_XS", "bart/M-GGUF:Q4_K_M",
                                               "bart/M-GGUF:Q8_0"}));
  EXPECT_EQ(find_model("bart/m-gguf:q4_k_m", folders_), snapshot / "M-Q4_K_M.gguf");
  EXPECT_EQ(find_model("M-GGUF:Q8_0", folders_), snapshot / "M-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(local_models(folders_)[2].weight_bytes, 20) << "both parts";
  EXPECT_NE(refusal("M-GGUF:IQ2_XS", ErrorKind::kFile).find("1 of 2 files"), std::string::npos);
}

TEST_F(LocalModels, GgufFilesInFoldersBySizeAreFound) {
  const fs::path snapshot = repository(
      "models--un--M", "abc1",
      {"Q4/M-Q4_K_M-00001-of-00002.gguf", "Q4/M-Q4_K_M-00002-of-00002.gguf", "Q6/M-Q6_K.gguf"});
  EXPECT_EQ(find_model("un/M:Q4_K_M", folders_), snapshot / "Q4/M-Q4_K_M-00001-of-00002.gguf");
  EXPECT_EQ(find_model("un/M:Q6_K", folders_), snapshot / "Q6/M-Q6_K.gguf");
}

TEST_F(LocalModels, OllamasManifestsNameBlobs) {
  const std::string layer = R"({"layers": [{"mediaType": "application/vnd.ollama.image.template",
    "digest": "x"}, {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:)" +
                            kDigest + R"("}]})";
  write("ollama/manifests/registry.ollama.ai/library/llama3.2/3b", layer);
  write("ollama/manifests/registry.ollama.ai/library/llama3.2/latest", layer);
  write("ollama/manifests/registry.ollama.ai/me/mine/v1", layer);
  write("ollama/manifests/hf.co/bart/M-GGUF/Q4_K_M", layer);
  write("ollama/blobs/sha256-" + kDigest, "GGUF....");
  EXPECT_EQ(names(), (std::vector<std::string>{"hf.co/bart/M-GGUF:Q4_K_M", "llama3.2:3b",
                                               "llama3.2:latest", "me/mine:v1"}));
  const fs::path blob = root_ / "ollama/blobs" / ("sha256-" + kDigest);
  for (const char* given : {"llama3.2:3b", "llama3.2", "me/mine:v1", "mine:v1",
                            "hf.co/bart/M-GGUF:Q4_K_M", "LLAMA3.2:3B"})
    EXPECT_EQ(find_model(given, folders_), blob) << given;
  fs::remove(blob);
  EXPECT_NE(refusal("llama3.2", ErrorKind::kFile).find("weights are not there"), std::string::npos);
}

TEST_F(LocalModels, OllamasBrokenManifestsHideNoOthers) {
  write("ollama/manifests/registry.ollama.ai/library/a/json", "{");
  write("ollama/manifests/registry.ollama.ai/library/b/list", R"({"layers": 3})");
  write("ollama/manifests/registry.ollama.ai/library/c/path",
        R"({"layers": [{"mediaType": "application/vnd.ollama.image.model",
            "digest": "sha256:../../../../etc/passwd"}]})");
  write("ollama/manifests/registry.ollama.ai/library/d/cloud", R"({"layers": []})");
  write("ollama/manifests/registry.ollama.ai/library/e/adapter",
        R"({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:)" +
            kDigest + R"("}, {"mediaType": "application/vnd.ollama.image.adapter"}, 5]})");
  write("ollama/blobs/sha256-" + kDigest, "GGUF....");
  const std::vector<LocalModel> all = local_models(folders_);
  ASSERT_EQ(names(), (std::vector<std::string>{"a:json", "b:list", "c:path", "e:adapter"}));
  for (const LocalModel& model : all) EXPECT_FALSE(model.problem.empty()) << model.name;
  EXPECT_NE(all[3].problem.find("adapter"), std::string::npos);
}

TEST_F(LocalModels, LmStudiosFoldersAreLikeTheHubs) {
  write("lm/pub/M-GGUF/M-Q4_K_M.gguf", "GGUF");
  write("lm/pub/mlx/config.json", "{}");
  write("lm/pub/mlx/model.safetensors", "0123");
  EXPECT_EQ(names(), (std::vector<std::string>{"pub/M-GGUF", "pub/mlx"}));
  EXPECT_EQ(find_model("M-GGUF", folders_), root_ / "lm/pub/M-GGUF/M-Q4_K_M.gguf");
}

TEST_F(LocalModels, SeveralOfOneNameAreRefused) {
  const std::vector<std::string> files = {"config.json", "model.safetensors"};
  repository("models--a--M", "abc1", files);
  repository("models--b--M", "abc1", files);
  const std::string text = refusal("M", ErrorKind::kUser);
  EXPECT_NE(text.find("a/M"), std::string::npos) << text;
  EXPECT_NE(text.find("b/M"), std::string::npos) << text;
  EXPECT_NO_THROW(find_model("a/M", folders_));
}

TEST_F(LocalModels, AWholeNameGoesBeforeTheEndOfAnother) {
  const std::vector<std::string> files = {"config.json", "model.safetensors"};
  const fs::path whole = repository("models--gpt2", "abc1", files);
  repository("models--other--gpt2", "abc1", files);
  EXPECT_EQ(find_model("gpt2", folders_), whole);
}

TEST_F(LocalModels, PathsStayWhatTheyAre) {
  repository("models--a--M", "abc1", {"config.json", "model.safetensors"});
  for (const char* given : {"./M", "/nowhere/M", "../M", "~/M", ""})
    EXPECT_EQ(find_model(given, folders_), given);
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  fs::create_directories("M");
  EXPECT_EQ(find_model("M", folders_), "M") << "a folder here goes before a name";
  fs::current_path(before);
}

TEST_F(LocalModels, AnUnreadableFolderIsAnEntryWithAProblem) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  repository("models--closed--door", "abc1", {"config.json", "model.safetensors"});
  repository("models--open--door", "abc1", {"config.json", "model.safetensors"});
  fs::permissions(root_ / "hub/models--closed--door", fs::perms::none);
  const std::vector<LocalModel> all = local_models(folders_);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_NE(all[0].problem, "");
  EXPECT_EQ(all[1].problem, "");
}

TEST_F(LocalModels, LinksInACircleEnd) {
  const fs::path base = root_ / "ollama/manifests/registry.ollama.ai/library";
  fs::create_directories(base);
  fs::create_directory_symlink(base, base / "again");
  EXPECT_NO_THROW(local_models(folders_));
  fs::create_directories(root_ / "hub/models--a--b/snapshots");
  fs::create_directory_symlink(root_ / "hub/models--a--b/snapshots/x",
                               root_ / "hub/models--a--b/snapshots/x");
  EXPECT_NO_THROW(local_models(folders_));
}

}  // namespace
}  // namespace sluice::app
