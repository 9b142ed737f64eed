#pragma once
// Weights that other tools have quantised or packed: what config.json or a GGUF file says of them,
// which tensors hold a matrix, and its elements by the published formula. Where the codes fit a
// format of ours they are kept; src/engine/stores/foreign_import.h does the packing. One file a
// tool; nothing else knows any of them. Immutable; thread safe.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "src/base/code_words.h"
#include "src/base/weight_format.h"
#include "src/model/config.h"
#include "src/shape/model_shape.h"

namespace sluice {

/// The bytes of a matrix's tensors, in the order of ForeignMatrix::parts: of a run those that
/// ForeignMatrix::ranges() says.
using ForeignBytes = std::vector<std::span<const std::byte>>;

/// Whole rows of a matrix, or some columns of all of them.
struct ForeignRun {
  int64_t first_row = 0, rows = 0;
  int64_t first_col = 0, cols = 0;
};

/// Plain elements that lie at even distances: of row r and column c at first + r row_step +
/// c col_step, in bytes.
struct SpacedElements {
  const std::byte* first = nullptr;
  int64_t row_step = 0;
  int64_t col_step = 0;
};

/// Reads one matrix, or a run of it: rows, columns and groups are counted from its first. Refers to
/// what it was made from.
class ForeignDecoder {
 public:
  virtual ~ForeignDecoder() = default;
  /// Row `row` as f32, [cols], by the tool's formula.
  virtual void values(int64_t row, float* out) const = 0;
  /// The codes of one group of ForeignMatrix::format, [group columns], with
  /// w = scale (code - zero), zero 128 of kInt8 and of no meaning for kNf4, kFp8 and kMxfp4. False:
  /// they do not fit that format.
  virtual bool codes(int64_t row, int64_t group, uint8_t* codes, float& scale, float& zero) const;
  /// The same of kIq1 and kIq2 (WeightFormat::is_k()): codes [256], scales of parts [16] and d.
  virtual bool parts(int64_t row, int64_t group, uint8_t* codes, int8_t* scales, float& d) const;
  /// Row `row` as its one part has it: blocks or elements of that tensor's type, one behind the
  /// other, whose values are the row's. Null: rows do not lie so.
  virtual const std::byte* row_bytes(int64_t row) const;
  /// Where its elements lie, of ForeignMatrix::format, which is plain. Nothing: values() must be
  /// asked.
  virtual std::optional<SpacedElements> elements() const;
  /// Where the codes lie that codes() gives, of row 0 on; and what it gives beside them. Nothing,
  /// or false: codes() must be asked.
  virtual std::optional<CodeWords> words() const;
  virtual bool scale(int64_t row, int64_t group, float& scale, float& zero) const;
};

/// A matrix of another tool, and how its values come out.
struct ForeignMatrix {
  /// What can be read without the rest: a run of rows, or of columns where the tool has matrices
  /// turned, or nothing.
  enum class Cut : uint8_t { kWhole, kRows, kColumns };
  /// Of a part so many bytes for each `step` rows (columns); step 0: all runs need all of it.
  struct Step {
    int64_t step = 0;
    int64_t bytes = 0;
    int64_t skipped = 0;  ///< rows of the part before the matrix's first
  };
  /// Of a part, in its file.
  struct Range {
    int64_t offset = 0, bytes = 0;
  };

  WeightFormat format;  ///< what it becomes where nothing else is asked; plain or quantised
  int64_t rows = 0, cols = 0;
  std::vector<const io::TensorEntry*> parts;
  /// For what ranges() says of a run that run_of() has given.
  std::function<std::unique_ptr<ForeignDecoder>(const ForeignBytes&, const ForeignRun&)> decoder;
  Cut cut = Cut::kWhole;
  std::vector<Step> steps;  ///< [part] of what can be cut
  int64_t multiple = 1;     ///< runs begin and end at multiples of so many, or at the last

  ForeignRun whole() const noexcept { return {0, rows, 0, cols}; }
  /// The run to read for some rows (columns): with those around that it can't be read without.
  ForeignRun run_of(const ForeignRun& wanted) const noexcept;
  /// [part] What is read for a run that run_of() has given.
  std::vector<Range> ranges(const ForeignRun& run) const;
  int64_t bytes(const ForeignRun& run) const;  ///< of its ranges
  /// What a run needs of the bytes of all parts.
  ForeignBytes within(const ForeignBytes& all, const ForeignRun& run) const;
  /// Rows that lie together in one part: bytes of one; else 0.
  int64_t row_bytes() const noexcept;
};

/// Rows before a run's first in its unit of `step` rows, of a part that has `skipped` before the
/// matrix: what a decoder adds to a row of its own.
constexpr int64_t rows_into_unit(const ForeignRun& run, int64_t step, int64_t skipped) noexcept {
  return (skipped + run.first_row) % step;
}

/// Which tensors hold which matrices, of one tool's format.
class ForeignWeights {
 public:
  virtual ~ForeignWeights() = default;
  /// "GPTQ".
  virtual std::string method() const = 0;
  /// What of larger tensors gets a name of its own before find() is asked. Errors: kFile likewise.
  virtual std::vector<io::TensorRows> parts(const WeightShape& weight) const;
  /// The matrix behind a weight, or nothing when the checkpoint has it as it is. Errors: kFile when
  /// its parts are missing, do not fit or can't be read.
  virtual std::optional<ForeignMatrix> find(const WeightShape& weight) const = 0;
};

/// What becomes of GGUF's K types and their like: kept value by value, or repacked to int4-g32 and
/// int8-g32, which GPUs multiply.
enum class KTypes : uint8_t { kKept, kRepacked };

/// What reads this checkpoint's weights, or null when they are plain. `config` is its config.json;
/// both must outlive the result. Errors: kFile for a method or setting that can't be read.
std::unique_ptr<ForeignWeights> foreign_weights(const ModelConfig& config,
                                                const io::Checkpoint& checkpoint,
                                                KTypes k_types = KTypes::kKept);

// One of these each; `settings` is config.json's quantization_config.
std::unique_ptr<ForeignWeights> gptq_weights(const ModelConfig& settings,
                                             const io::Checkpoint& checkpoint);
std::unique_ptr<ForeignWeights> awq_weights(const ModelConfig& settings,
                                            const io::Checkpoint& checkpoint);
std::unique_ptr<ForeignWeights> bitsandbytes_weights(const ModelConfig& settings,
                                                     const io::Checkpoint& checkpoint);
std::unique_ptr<ForeignWeights> compressed_tensors_weights(const ModelConfig& settings,
                                                           const io::Checkpoint& checkpoint);
std::unique_ptr<ForeignWeights> fp8_weights(const ModelConfig& settings,
                                            const io::Checkpoint& checkpoint);
std::unique_ptr<ForeignWeights> mxfp4_weights(const ModelConfig& settings,
                                              const io::Checkpoint& checkpoint);
std::unique_ptr<ForeignWeights> gguf_weights(const io::Checkpoint& checkpoint, KTypes k_types);

/// Rows and columns that share a scale.
struct Fp8Block {
  int32_t rows = 0, cols = 0;
};

/// Two numbers of `settings`, or nothing where the key is absent. Errors: kFile for anything else.
std::optional<Fp8Block> fp8_block(const ModelConfig& settings, const char* key);

class PartFinder;

/// X.weight of `codes` in e4m3, with a scale in Y + end of `scales` for each block (the last of a
/// row or column may be short), or without blocks one for each row or one for all. Scales that are
/// looked for elsewhere than codes are those of the larger matrix of WeightShape::fused.
ForeignMatrix fp8_matrix(const WeightShape& weight, const PartFinder& codes,
                         const PartFinder& scales, const std::string& end,
                         const std::optional<Fp8Block>& block);

/// A matrix that a checkpoint of another tool has transposed, or nothing: it has it as it is.
std::optional<ForeignMatrix> transposed_matrix(const io::Checkpoint& checkpoint,
                                               const WeightShape& weight);

/// Of a weight whose rows do not lie together in a stack of all experts (WeightShape::fused): a
/// name for each expert's part of the stack, and the matrix in one.
std::vector<io::TensorRows> stack_parts(const io::Checkpoint& checkpoint,
                                        const WeightShape& weight);
std::optional<ForeignMatrix> stacked_matrix(const io::Checkpoint& checkpoint,
                                            const WeightShape& weight);

/// What the checkpoint calls the larger tensor that the weight is rows of (WeightShape::fused): the
/// first of its names that is there with `end`, else the first; empty: it is no such part.
std::string fused_name(const io::Checkpoint& checkpoint, const WeightShape& weight,
                       std::string_view end = "");

/// The group of each column, i32 [cols], as tools store it whose groups follow activations. Errors:
/// kFile naming `what` when one is not below `groups`.
void check_groups(std::span<const std::byte> indices, int64_t cols, int64_t groups,
                  const std::string& what);

/// What to do with a checkpoint that can't be read.
extern const char* const kForeignMend;

/// Looks for one matrix's tensors, "X.qweight" and the like.
class PartFinder {
 public:
  PartFinder(const io::Checkpoint& checkpoint, std::string stem)
      : checkpoint_(checkpoint), stem_(std::move(stem)) {}
  /// Null when there is none.
  const io::TensorEntry* look(const std::string& end) const {
    return checkpoint_.find(stem_ + end);
  }
  /// Errors: kFile when missing, of another type than one of `dtypes` or of another shape.
  const io::TensorEntry* need(const std::string& end, const std::vector<DType>& dtypes,
                              const std::vector<int64_t>& shape) const;
  [[noreturn]] void refuse(const std::string& end, const std::string& problem) const;

 private:
  const io::Checkpoint& checkpoint_;
  std::string stem_;
};

/// "X" of the first of weight.names that ends in ".weight" and has a tensor X + end; else nothing.
std::optional<std::string> stem_of(const io::Checkpoint& checkpoint, const WeightShape& weight,
                                   const std::string& end);

/// Our group for one of theirs (0 or less: a whole row): a row's scale is repeated where theirs is
/// wider than 128. Nothing when no group of ours divides it and the columns.
std::optional<int32_t> group_within(int64_t group, int64_t cols);

/// Element `index` of little-endian bytes.
template <typename T>
T element(std::span<const std::byte> bytes, int64_t index);
/// Element `index` of f32, f16 or bf16 bytes.
float float_element(std::span<const std::byte> bytes, DType dtype, int64_t index);

}  // namespace sluice

#include <cstring>

template <typename T>
T sluice::element(std::span<const std::byte> bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
