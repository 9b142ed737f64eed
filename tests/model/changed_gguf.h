#pragma once
// A GGUF file of tests/fixtures/models with some keys and tensors changed, and what it is read as.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/model/bound_model.h"
#include "src/model/foreign/gguf_config.h"

namespace sluice::made {

class ChangedGguf {
 public:
  explicit ChangedGguf(const std::string& fixture)
      : bytes_(read_file(std::filesystem::path(SLUICE_FIXTURES) / "models" / fixture / "model.gguf",
                         1 << 24)) {
    std::string pattern = ::testing::TempDir() + "/sluice_gguf_mixture_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ChangedGguf() { std::filesystem::remove_all(folder_); }
  ChangedGguf(const ChangedGguf&) = delete;
  ChangedGguf& operator=(const ChangedGguf&) = delete;

  // A key's u32.
  ChangedGguf& set(const std::string& key, uint32_t value) {
    std::memcpy(bytes_.data() + behind(key) + 4, &value, 4);
    return *this;
  }
  // The first letter of a key or tensor, so that nobody knows it.
  ChangedGguf& lose(const std::string& name) {
    bytes_[behind(name) - name.size()] = 'x';
    return *this;
  }
  // A dimension of a tensor, the innermost being 0.
  ChangedGguf& resize(const std::string& tensor, size_t dimension, uint64_t size) {
    std::memcpy(bytes_.data() + behind(tensor) + 4 + 8 * dimension, &size, 8);
    return *this;
  }

  BoundModel open() const {
    write_file(folder_ / "model.gguf", bytes_);
    return BoundModel::open(folder_ / "model.gguf");
  }
  // The config.json that its keys make; what its tensors are does not count.
  nlohmann::json config_of_keys() const {
    write_file(folder_ / "model.gguf", bytes_);
    return nlohmann::json::parse(gguf_config_json(io::Checkpoint::open(folder_ / "model.gguf")));
  }
  nlohmann::json config() const { return nlohmann::json::parse(open().config_text()); }
  // What it is refused with.
  std::string refusal() const {
    try {
      open();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.what();
      return error.what();
    }
    return "opened";
  }

 private:
  // Where a text with its length before it ends.
  size_t behind(const std::string& text) const {
    const auto length = static_cast<uint64_t>(text.size());
    std::string wanted(reinterpret_cast<const char*>(&length), 8);
    wanted += text;
    const size_t at = bytes_.find(wanted);
    if (at == std::string::npos) throw std::runtime_error("no " + text);
    return at + wanted.size();
  }

  std::string bytes_;
  std::filesystem::path folder_;
};

inline void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

}  // namespace sluice::made
