#include "tests/tools/files.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "tests/whole_file.h"

namespace sluice::testing {

namespace fs = std::filesystem;

std::string fixture(const std::string& name) { return std::string(SLUICE_FIXTURES) + "/" + name; }
std::string fixture_model(const std::string& name) { return fixture("models/" + name); }

std::vector<Golden> goldens(const std::string& model) {
  std::vector<Golden> out;
  const auto json = nlohmann::json::parse(read_file(fixture_model(model) + "/goldens.json"));
  for (const auto& entry : json["cases"])
    out.push_back({entry.value("prompt", ""), entry["prompt_ids"].get<std::vector<int32_t>>(),
                   entry["greedy_ids"].get<std::vector<int32_t>>(), entry.value("text", "")});
  return out;
}

std::string id_list(const std::vector<int32_t>& ids) {
  std::string out;
  for (int32_t id : ids) out += (out.empty() ? "" : ",") + std::to_string(id);
  return out;
}

std::string read_file(const fs::path& path) { return whole_file(path); }

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  if (!(file << text).flush()) throw std::runtime_error("can't write " + path.string());
}

std::vector<nlohmann::json> read_json_lines(const fs::path& path) {
  std::vector<nlohmann::json> out;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    out.push_back(nlohmann::json::parse(line, nullptr, false));
    EXPECT_TRUE(out.back().is_object()) << line;
  }
  return out;
}

Texts texts(const fs::path& path) {
  Texts out;
  for (const auto& record : read_json_lines(path)) {
    EXPECT_TRUE(record["error"].is_null()) << record;
    const std::string text = record["response"]["body"]["choices"][0]["text"];
    EXPECT_TRUE(out.emplace(record["custom_id"], text).second) << record["custom_id"];
  }
  return out;
}

std::map<std::string, std::string> read_folder(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      out[fs::relative(entry.path(), folder).string()] = read_file(entry.path());
  return out;
}

void copy_model(const std::string& name, const fs::path& to) {
  fs::copy(fixture_model(name), to, fs::copy_options::recursive);
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "sluice_tools_XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("can't make " + pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::path(const std::string& name) const {
  return name.empty() ? path_.string() : (path_ / name).string();
}

std::unique_ptr<SmallFileSystem> SmallFileSystem::mount(const std::string& options) {
  // In a mount namespace of this process's own: it goes when the process does, however that ends.
  if (unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return nullptr;
  std::unique_ptr<SmallFileSystem> out(new SmallFileSystem);
  if (::mount("sluice_test", out->path().c_str(), "tmpfs", 0, options.c_str()) != 0) return nullptr;
  out->is_mounted_ = true;
  return out;
}

SmallFileSystem::~SmallFileSystem() {
  if (is_mounted_ && umount2(path().c_str(), MNT_DETACH) != 0)
    ADD_FAILURE() << "can't unmount " << path();
}

void SmallFileSystem::fill(int64_t bytes) {
  struct statvfs space {};
  if (statvfs(path().c_str(), &space) != 0) throw std::runtime_error("no file system " + path());
  const auto block = static_cast<int64_t>(space.f_bsize);
  const int64_t blocks = static_cast<int64_t>(space.f_bfree) - (bytes + block - 1) / block;
  write_file(path("filling"), std::string(static_cast<size_t>(blocks * block), 'x'));
}

}  // namespace sluice::testing
