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

/// What is wanted of a model's positions; zeros and empty texts: as its config.json says.
struct ModelOptions {
  std::string rope_scaling;  ///< "yarn", "linear", "none", or an object as config.json has it
  double rope_factor = 0;    ///< by how much longer sequences become
  double rope_theta = 0;     ///< base of the rotary frequencies
  int64_t rope_original = 0;  ///< positions that the model was trained on
  /// Of the longest sequence, even where that is more than the model was made for.
  int64_t context_tokens = 0;
};

class Model {
 public:
  /// A Hugging Face folder or a packed store. Errors: kFile naming what is missing or does not fit;
  /// kUser for positions that the model can't have.
  static Model open(const std::filesystem::path& path, const ModelOptions& options = {});

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
