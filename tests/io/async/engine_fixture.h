#pragma once
// What the file engine tests share: a scratch folder, aligned memory, files of known bytes, and one
// fixture that runs a test with every engine, direct and through the page cache.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "io/async/file_engine.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::io {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = testing::TempDir() + "/sluice-io-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no scratch folder");
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Memory that direct I/O takes, filled with a pattern that no test file holds by chance for long.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t bytes)
      : bytes_(bytes),
        memory_(static_cast<std::byte*>(::aligned_alloc(
            kDirectAlignment, static_cast<size_t>(round_up(bytes, kDirectAlignment))))) {
    std::memset(memory_.get(), 0xEE, static_cast<size_t>(bytes));
  }
  std::byte* at(int64_t offset) const { return memory_.get() + offset; }
  std::span<std::byte> span() const { return {memory_.get(), static_cast<size_t>(bytes_)}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::free(memory); }
  };
  int64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

inline std::vector<std::byte> random_bytes(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline void write_file(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("can't write " + path);
}

/// Lines that an engine logged; thread safe.
class LogLines {
 public:
  std::function<void(std::string_view)> sink() {
    return [this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    };
  }
  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// Runs `action`, which must throw an Error, and gives that.
template <typename Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorKind::kInternal, "no error");
}

inline Error error_of(std::exception_ptr error) {
  return error_of([&] {
    if (error) std::rethrow_exception(error);
  });
}

struct EngineKind {
  IoMode mode;
  bool direct;
};

inline std::string name_of(const testing::TestParamInfo<EngineKind>& info) {
  return std::string(info.param.mode == IoMode::kUring ? "Uring" : "Pread") +
         (info.param.direct ? "Direct" : "Cached");
}

/// A test with `engine()`; skipped where the kernel has no io_uring.
class EveryEngine : public testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    if (GetParam().mode != IoMode::kUring) return;
    try {
      make_file_engine({.mode = IoMode::kUring});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// Small requests and few of them, so that even small files need many turns.
  std::unique_ptr<FileEngine> engine(int64_t request_bytes = 16 * kKiB,
                                     int64_t bytes_in_flight = 128 * kKiB) {
    FileEngineOptions options;
    options.mode = GetParam().mode;
    options.direct = GetParam().direct;
    options.request_bytes = request_bytes;
    options.bytes_in_flight = bytes_in_flight;
    options.log = options.warn = log_.sink();
    return make_file_engine(options);
  }

  ScratchFolder folder_;
  LogLines log_;
};

#define SLUICE_EVERY_ENGINE(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(                                                                 \
      Engines, Suite,                                                                       \
      testing::Values(EngineKind{IoMode::kUring, true}, EngineKind{IoMode::kUring, false},  \
                      EngineKind{IoMode::kPread, true}, EngineKind{IoMode::kPread, false}), \
      name_of)

}  // namespace sluice::io
