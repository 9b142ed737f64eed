#pragma once
// The packed store: a folder whose weight files hold one group (embedding, one layer, head) each,
// in the order in which a pass reads it, every tensor 4096-aligned, with a checksum a file;
// docs/formats/packed-store.md has the bytes. Each weight file is a valid safetensors file.
// Checkpoint::open reads a store like any checkpoint; this header is for what only a store has: its
// index and its checksums. Functions are thread safe; they share nothing.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/tensor_entry.h"

namespace sluice::io {

constexpr std::string_view kStoreIndexName = "sluice-store.json";
constexpr int kStoreVersion = 1;           // stored on disk
constexpr int64_t kStoreAlignment = 4096;  // stored on disk: every tensor's absolute file offset
constexpr std::string_view kStorePadPrefix = "__pad.";  // stored on disk: names of filling tensors

constexpr std::string_view kStoreMetadataKey =
    "sluice-store";  // stored on disk: __metadata__ key of a store's files

/// One weight file of a store, as its index describes it.
struct PackedGroup {
  std::string name;                  // "embed", "layer-00017", "head"
  std::string file;                  // file name inside the folder
  int64_t bytes = 0;                 // whole file
  uint32_t checksum = 0;             // CRC32C of the whole file
  std::vector<TensorEntry> tensors;  // file_index is the group's position in the store
  /// An earlier group whose file this one's is a copy of (a hard link), so that the file's header
  /// has that group's names; empty: none.
  std::string repeats;
};

/// A small file that a conversion has put beside the weights (config.json, the tokenizer).
struct PackedSmallFile {
  std::string name;  // inside the folder
  int64_t bytes = 0;
  uint32_t checksum = 0;  // CRC32C
};
/// As the file is now. Errors: kFile.
PackedSmallFile describe_small_file(const std::filesystem::path& path);

/// What sluice-store.json says.
struct PackedIndex {
  std::string source_name;      // folder or file that was converted
  std::string source_format;    // checkpoint_format_name of it
  std::string source_identity;  // hexadecimal; of its file names, sizes and tensor table
  std::vector<PackedGroup> groups;
  std::vector<PackedSmallFile> small_files;  // of stores from before they were listed: none
};

/// True when `folder` has a store index (finished conversion).
bool is_packed_store(const std::filesystem::path& folder);
/// Reads and validates the index. Errors: kFile with path and what is wrong.
PackedIndex read_packed_index(const std::filesystem::path& folder);

/// The index as JSON text, the inverse of read_packed_index. Errors: kUser when a name is not
/// UTF-8.
std::string format_packed_index(const PackedIndex& index);

/// How much has been checked.
struct VerifyProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  std::string_view group;
};

/// Reads every weight file and every small file that the index lists and compares size and
/// checksum. Returns the bytes read. `progress` may be empty; `stop` may be null. Errors: kFile
/// naming the first file that differs; kCancelled.
int64_t verify_store(const std::filesystem::path& folder,
                     const std::function<void(const VerifyProgress&)>& progress = {},
                     const std::atomic<bool>* stop = nullptr);

}  // namespace sluice::io
