#pragma once
// Sound models of tests/fixtures/models, changed in one thing and opened.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/base/error.h"
#include "src/model/bound_model.h"

namespace sluice {

// A copy of a fixture with one safetensors file, to be changed.
class ChangedModel {
 public:
  explicit ChangedModel(const std::string& fixture) {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-model-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    for (const char* file : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(std::filesystem::path(SLUICE_FIXTURES) / "models" / fixture / file,
                                 folder_ / file);
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      std::filesystem::permissions(
          entry.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    const std::string bytes = read("model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header = nlohmann::ordered_json::parse(bytes.substr(8, length));
    data_ = bytes.substr(8 + length);
    config = nlohmann::ordered_json::parse(read("config.json"));
  }
  ~ChangedModel() { std::filesystem::remove_all(folder_); }
  ChangedModel(const ChangedModel&) = delete;
  ChangedModel& operator=(const ChangedModel&) = delete;

  nlohmann::ordered_json header;
  nlohmann::ordered_json config;

  /// Another tensor, at the end.
  void add(const std::string& name, const nlohmann::ordered_json& dtype,
           const nlohmann::ordered_json& shape, const std::string& data) {
    header[name] = {{"dtype", dtype},
                    {"shape", shape},
                    {"data_offsets", {data_.size(), data_.size() + data.size()}}};
    data_ += data;
  }
  std::string data_of(const std::string& name) const {
    const auto& offsets = header[name]["data_offsets"];
    return data_.substr(offsets[0], offsets[1].get<size_t>() - offsets[0].get<size_t>());
  }
  void save() const {
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream weights(folder_ / "model.safetensors", std::ios::binary);
    weights.write(reinterpret_cast<const char*>(&length), 8);
    weights << text << data_;
    std::ofstream(folder_ / "config.json") << config.dump();
  }
  void remove(const char* file) const { std::filesystem::remove(folder_ / file); }
  const std::filesystem::path& folder() const { return folder_; }

  /// The error of opening it as it is now.
  Error refusal() const {
    save();
    return refusal_unsaved();
  }
  Error refusal_unsaved() const {
    try {
      BoundModel::open(folder_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.what();
      EXPECT_NE(error.text().find(folder_.string()), std::string::npos) << error.text();
      EXPECT_FALSE(error.mend().empty()) << error.text();
      return error;
    }
    ADD_FAILURE() << "was opened";
    return Error(ErrorKind::kInternal, "was opened");
  }

 private:
  std::string read(const char* file) const {
    std::ifstream stream(folder_ / file, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  }
  std::filesystem::path folder_;
  std::string data_;
};

inline void expect_words(const Error& error, std::initializer_list<std::string> words) {
  for (const std::string& word : words)
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
        << word << " in " << error.what();
}

}  // namespace sluice
