#pragma once
// A checkpoint that has been opened: every weight found, none read. A handle; copies share it, any
// thread may use it.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

class BoundModel;
struct EmbeddingForm;

class Model {
 public:
  /// A Hugging Face folder or a packed store. Errors: kFile naming what is missing or does not fit.
  static Model open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  std::string family() const;          ///< config.json's model_type: "llama"
  std::string weights() const;         ///< "bf16", "int4-g64"
  int64_t parameters() const;
  int64_t weight_bytes() const;        ///< as stored
  int64_t layers() const;
  int64_t vocabulary() const;          ///< ids are below
  int64_t longest_context() const;     ///< tokens that the model was made for
  std::vector<int32_t> end_tokens() const;  ///< that end a sequence; may be empty
  /// What a user should be told of this checkpoint; may be empty.
  std::vector<std::string> notes() const;

 private:
  friend class Plan;
  friend EmbeddingForm embedding_form(const Model& model);
  explicit Model(std::shared_ptr<const BoundModel> bound) : bound_(std::move(bound)) {}
  std::shared_ptr<const BoundModel> bound_;
};

}  // namespace sluice
