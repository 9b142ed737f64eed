#pragma once
// PyTorch's checkpoint file (.bin, .pt, .pth since PyTorch 1.6): a zip archive of stored
// (uncompressed) records, one of them a pickle that says which record holds which tensor. Finds
// where each tensor's bytes lie in the file, so that a .bin runs in place. Reads the archive's
// directory (zip64 too) and the pickle only. Thread safe; shares nothing.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/checkpoint/tensor_entry.h"

namespace sluice::io {

/// A stored file of the archive.
struct ZipRecord {
  std::string name;
  int64_t data_offset = 0;  // in the file; the local header's lengths are already skipped
  int64_t bytes = 0;
};

/// All records of a zip file, ordered as its directory. Errors: kFile (no zip, truncated,
/// compressed or encrypted records, ranges outside the file, duplicate names).
std::vector<ZipRecord> read_zip_directory(const std::filesystem::path& path);

/// The tensors of a PyTorch file, ordered by offset, then name; file_index is 0. Tied tensors have
/// equal offsets. Errors: kFile, with a mend for legacy (non-zip) files, TorchScript archives,
/// big-endian files and LFS pointers.
std::vector<TensorEntry> read_torch_file(const std::filesystem::path& path);

}  // namespace sluice::io
