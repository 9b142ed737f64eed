// Where the toolkit's libraries are looked for when the loader does not find them.
#include "kernels/cuda/library_places.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sluice::cuda {
namespace {
namespace fs = std::filesystem;

class LibraryPlaces : public ::testing::Test {
 protected:
  LibraryPlaces() {
    std::string pattern = fs::temp_directory_path() / "sluice-places-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  ~LibraryPlaces() override { fs::remove_all(root_); }
  void put(const std::string& path) {
    fs::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << "x";
  }
  std::vector<std::string> found(const std::string& name) {
    std::vector<std::string> out;
    for (const std::string& path : toolkit_libraries(name, root_))
      out.push_back(path.substr(root_.size()));
    return out;
  }

  std::string root_;
};

TEST_F(LibraryPlaces, TheToolkitInUseThenNewerOnesThenPythons) {
  put("/usr/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13");
  put("/usr/local/lib/python3.11/dist-packages/nvidia/cublas/lib/libcublasLt.so.13");
  put("/usr/local/cuda-13.0/lib64/libcublasLt.so.13");
  put("/usr/local/cuda-13.1/lib64/libcublasLt.so.13");
  put("/usr/local/cuda-13.1/lib64/libcublasLt.so.14");
  put("/usr/local/cuda/lib64/libcublasLt.so.13");
  EXPECT_EQ(
      found("libcublasLt.so.13"),
      (std::vector<std::string>{
          "/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda-13.1/lib64/libcublasLt.so.13",
          "/usr/local/cuda-13.0/lib64/libcublasLt.so.13",
          "/usr/local/lib/python3.11/dist-packages/nvidia/cublas/lib/libcublasLt.so.13",
          "/usr/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13"}));
}

TEST_F(LibraryPlaces, NothingWhereThereIsNone) {
  put("/usr/local/cuda/lib64/libcublasLt.so.12");
  EXPECT_TRUE(found("libcublasLt.so.13").empty());
  EXPECT_NE(toolkit_folders().find("/usr/local/cuda/lib64"), std::string::npos);
}

}  // namespace
}  // namespace sluice::cuda
