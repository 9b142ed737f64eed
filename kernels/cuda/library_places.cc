#include "kernels/cuda/library_places.h"

#include <glob.h>

#include <algorithm>

namespace sluice::cuda {

namespace {
const char* const kFolders[] = {"/usr/local/cuda/lib64",
                                "/usr/local/cuda/targets/x86_64-linux/lib",
                                "/opt/cuda/lib64",
                                "/usr/local/cuda-*/lib64",
                                "/usr/local/cuda-*/targets/x86_64-linux/lib",
                                "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
                                "/usr/lib/python3*/*-packages/nvidia/*/lib"};
}  // namespace

std::vector<std::string> toolkit_libraries(const std::string& name, const std::string& root) {
  std::vector<std::string> out;
  for (const char* folder : kFolders) {
    glob_t found{};
    if (::glob((root + folder + "/" + name).c_str(), 0, nullptr, &found) == 0) {
      std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
      std::reverse(paths.begin(), paths.end());
      out.insert(out.end(), paths.begin(), paths.end());
    }
    ::globfree(&found);
  }
  return out;
}

std::string toolkit_folders() {
  std::string out;
  for (const char* folder : kFolders) out += (out.empty() ? "" : ", ") + std::string(folder);
  return out;
}

}  // namespace sluice::cuda
