#pragma once
// What a test asks of the fake NVML (fake_nvml.cc, a library beside the test program) and learns
// from it.
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "src/base/error.h"

namespace sluice {

struct FakeNvmlState {
  bool refuses = false;           ///< nvmlInit
  bool knows_only_clock = false;  ///< of the SM, now
  bool knows_no_clock = false;    ///< of now
  unsigned sm_mhz = 1980;
  unsigned long long bits = 0;  ///< reasons for lower clocks
  int open = 0;
};

/// Holds the library and resets it.
class FakeNvml {
 public:
  FakeNvml() : library_(::dlopen(path().c_str(), RTLD_NOW)) {
    SLUICE_ASSERT(library_, "the tests' library is built beside them");
    state_ = reinterpret_cast<FakeNvmlState* (*)()>(::dlsym(library_, "fake_nvml"))();
    *state_ = {};
  }
  ~FakeNvml() { ::dlclose(library_); }
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;

  FakeNvmlState* operator->() const noexcept { return state_; }
  static std::string path() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfake_nvml.so";
  }

 private:
  void* library_;
  FakeNvmlState* state_ = nullptr;
};

}  // namespace sluice
