#pragma once
// Embeddings of a decoder model: the rows behind its final norm, one of them or their mean, and
// what a folder in the form of Sentence Transformers says about that.
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace sluice::serve {

/// Which rows of a prompt's tokens make its embedding.
enum class Pooling : uint8_t {
  kNone,
  kLast,  ///< the last token's: the only one that has seen all
  kMean,  ///< the mean of all
  kFirst  ///< the first token's ("cls"): in a decoder it has seen nothing else
};

/// A way of pooling, and what requests call it.
struct PoolingName {
  std::string_view name;
  Pooling pooling;
};
/// All that there are.
inline constexpr std::array<PoolingName, 3> kPoolingNames{
    {{"last", Pooling::kLast}, {"mean", Pooling::kMean}, {"cls", Pooling::kFirst}}};

/// How a model's embeddings are made where a request says nothing else.
struct EmbeddingForm {
  Pooling pooling = Pooling::kLast;
  bool is_normalised = true;  ///< to length 1
};

/// Of the folder's modules.json and the configuration of its pooling module; where there is no
/// modules.json, the last token's row, normalised. `hidden_size`: the model's. Errors: kFile naming
/// the module or the setting that is not understood.
EmbeddingForm read_embedding_form(const std::filesystem::path& folder, int64_t hidden_size);

/// Adds the rows up. One thread.
class Pooler {
 public:
  explicit Pooler(Pooling pooling) noexcept : pooling_(pooling) {}
  /// [hidden_size] f32, in the order of the tokens.
  void add(std::span<const float> row);
  /// [hidden_size] f32; of means the f64 sums.
  std::vector<float> take() const;

 private:
  Pooling pooling_;
  std::vector<double> sum_;
  int64_t rows_ = 0;
};

/// Divides by the length (f64 sum of squares); zeros stay zeros.
void normalise(std::span<float> values) noexcept;

}  // namespace sluice::serve
