#pragma once
// A folder with a name of its own that a test may fill; removed with its contents. Tests of one
// program run beside each other, each in a process: a folder of a fixed name would be another
// test's as well.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace sluice {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "/sluice_test_XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr) << pattern;
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace sluice
