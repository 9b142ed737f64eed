#pragma once
// Files that the command line's tests read and write: fixtures, temporary folders, small file
// systems that fill up.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice::testing {

/// A path in tests/fixtures.
std::string fixture(const std::string& name);
/// A model of tests/fixtures/models.
std::string fixture_model(const std::string& name);
/// The smallest model that writes English.
inline const std::string kModel = fixture_model("stories260k");

/// A case of a model's goldens.json.
struct Golden {
  std::string prompt;  ///< empty where the case has ids only
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> greedy_ids;
  std::string text;  ///< prompt and answer; empty where the case has ids only
};
std::vector<Golden> goldens(const std::string& model);

/// "1,2,3", as --prompt-ids takes them.
std::string id_list(const std::vector<int32_t>& ids);

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& text);
/// Every line of a JSON lines file; a failed expectation for a line that is none.
std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path);
using Texts = std::map<std::string, std::string>;
/// custom_id -> text of a batch's answers; expects each once and no error.
Texts texts(const std::filesystem::path& path);
/// Path inside the folder -> contents, of every file in it.
std::map<std::string, std::string> read_folder(const std::filesystem::path& folder);
/// Copies a fixture model, so that a test may damage it.
void copy_model(const std::string& name, const std::filesystem::path& to);

/// Removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path(const std::string& name = {}) const;

 private:
  std::filesystem::path path_;
};

/// A file system of its own in memory, to be filled. Needs the right to mount.
class SmallFileSystem {
 public:
  /// `options` as of mount -o: "size=1m". Nothing where mounting is not allowed.
  static std::unique_ptr<SmallFileSystem> mount(const std::string& options);
  ~SmallFileSystem();
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  std::string path(const std::string& name = {}) const { return folder_.path(name); }
  /// Leaves no more than `bytes` free.
  void fill(int64_t bytes = 0);

 private:
  SmallFileSystem() = default;
  TemporaryFolder folder_;
  bool is_mounted_ = false;
};

}  // namespace sluice::testing
