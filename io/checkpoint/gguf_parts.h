#pragma once
// The files of a GGUF model that is split: which part a file is stands in its keys (split.no,
// split.count), so that the files may have any names.
#include <filesystem>
#include <optional>
#include <vector>

#include "io/checkpoint/gguf_metadata.h"

namespace sluice::io {

/// Which part of how many a file is.
struct GgufPart {
  int64_t number = 0;  ///< from 0
  int64_t count = 1;
  int64_t tensors = -1;  ///< of all parts; -1: the file does not say
};

/// Nothing for a model in one file. Errors: kFile naming `path` and the key that makes no sense.
std::optional<GgufPart> gguf_part(const GgufMetadata& metadata, const std::filesystem::path& path);

/// All parts in order, of which `path` is one: those of its folder that are called alike
/// (NAME-00001-of-00003.gguf), else any of the folder. Errors: kFile for a part that is missing or
/// there twice.
std::vector<std::filesystem::path> gguf_parts(const std::filesystem::path& path,
                                              const GgufPart& part);

}  // namespace sluice::io
