#pragma once
// Writes a packed store from a checkpoint: streams group after group in bounded pieces, converts
// element types on the way, and can be killed at any moment: finished groups are kept in a journal
// and a second run continues after them. The caller says what goes where (names and order come from
// the model code). One conversion a destination at a time.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/piece_reader.h"
#include "src/base/weight_format.h"

namespace sluice::io {

/// Quantises rows [count, cols] f32 into whole panels, the last filled up; with threads of its own.
/// False: a value can't be.
using RowsQuantiser =
    std::function<bool(const float* rows, int64_t count, int64_t cols, std::byte* panels)>;

/// A tensor of the store and what it is made from.
struct StoreTensor {
  std::string source_name;
  std::string store_name;
  // Plain: f32, f16 or bf16 from any of these; quantised: from f32, f16 and bf16 matrices, by
  // ConvertOptions::quantise; nothing: bytes as they are.
  std::optional<WeightFormat> to;
  std::vector<float> importance;  // of a quantised matrix's columns; empty: all the same
  // What a quantised matrix's rows and columns are multiplied with first; empty: nothing.
  std::vector<float> row_scale, column_scale;
  // Of a quantised matrix: called when its turn comes; what it answers quantises its rows, unless
  // that is empty.
  std::function<RowsQuantiser()> prepare;
  // A tensor made of others: `made` says name, type and shape, `sources` which tensors are read
  // whole, and `make` turns their bytes into its own.
  std::vector<std::string> sources;
  TensorEntry made;
  std::function<std::vector<std::byte>(const std::vector<std::vector<std::byte>>&)> make;

  StoreTensor(std::string source, std::string store, std::optional<DType> plain = {})
      : source_name(std::move(source)), store_name(std::move(store)) {
    if (plain) to = WeightFormat::plain(*plain);
  }
  StoreTensor(std::string source, std::string store, std::optional<WeightFormat> format,
              std::vector<float> column_importance)
      : source_name(std::move(source)),
        store_name(std::move(store)),
        to(format),
        importance(std::move(column_importance)) {}
  StoreTensor(
      TensorEntry tensor, std::vector<std::string> from,
      std::function<std::vector<std::byte>(const std::vector<std::vector<std::byte>>&)> maker)
      : source_name(from.front()),
        store_name(tensor.name),
        sources(std::move(from)),
        made(std::move(tensor)),
        make(std::move(maker)) {}
};

/// Quantises `row_count` (1 to 16) rows of `cols` f32 values into one panel; false: a value can't
/// be (infinite, NaN, too large). Called from several threads.
using PanelQuantiser =
    std::function<bool(const WeightFormat& format, const float* importance, const float* rows,
                       int64_t row_count, int64_t cols, std::byte* panel)>;

/// What one file of the store holds.
struct StoreGroup {
  std::string name;  // letters, digits, '-', '_' and '.': the file is <name>.safetensors
  std::vector<StoreTensor> tensors;  // laid out in this order
};

/// How much has been written.
struct ConvertProgress {
  int64_t done_bytes = 0;   // written, finished groups of an earlier run included
  int64_t total_bytes = 0;  // of all weight files
  std::string_view group;   // being written
};

/// How a conversion is done.
struct ConvertOptions {
  std::filesystem::path destination;  // made when missing
  bool overwrite =
      false;  // replace what is there; the same conversion, unfinished, is continued all the same
  bool verify_finished =
      false;        // when continuing: recompute the checksums of finished groups, not only sizes
  int threads = 0;  // for converting element types; 0: all processors
  /// Of a generated checkpoint (Checkpoint::describe): makes the bytes of a piece of a file of it.
  /// Called from several threads.
  std::function<void(const Piece& piece, std::span<std::byte> to)> source_bytes;
  PanelQuantiser quantise;     // needed where a StoreTensor says so
  std::string quantiser_name;  // what else its result depends on; another one starts anew
  std::function<void(const ConvertProgress&)>
      progress;  // on the calling thread, about every 8 MiB; may be empty
  const std::atomic<bool>* stop = nullptr;         // set it to end early with kCancelled
  std::vector<std::filesystem::path> extra_files;  // copied besides companion_files(); by file name
  std::vector<std::pair<std::string, std::string>> texts;  // file name and content, written instead
};

/// What a conversion has written.
struct ConvertReport {
  int64_t total_bytes = 0;    // of all weight files
  int64_t written_bytes = 0;  // by this run
  int64_t groups = 0;
  int64_t resumed_groups = 0;  // found finished
};

/// Converts; returns when the store is complete and on disk. Memory: about 128 MiB whatever the
/// model's size. Errors: kUser (destination is the source, holds something else, unknown source
/// tensor, a conversion that is refused), kFile (reading), kResource (disk full: said before the
/// first byte where it can be known; finished groups stay for the next run), kCancelled.
ConvertReport convert_checkpoint(const Checkpoint& source, std::span<const StoreGroup> groups,
                                 const ConvertOptions& options);

/// Bytes of all weight files that convert_checkpoint would write. Same kUser errors; touches no
/// disk.
int64_t packed_store_bytes(const Checkpoint& source, std::span<const StoreGroup> groups);

/// The small files of a model folder that a converted one needs as well (config.json, tokenizer
/// files, chat template).
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder);

}  // namespace sluice::io
