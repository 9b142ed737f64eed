#pragma once
// What a conversion will write, byte by byte, before anything is written: the layout of every
// weight file, its header, and a name for the whole (source and layout) by which a later run knows
// that it continues the same conversion. Private to conversion. Plain values; building one touches
// no disk.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/packed_store.h"
#include "io/convert/convert.h"

namespace sluice::io {

/// A tensor with its place in the store.
struct PlannedTensor {
  TensorEntry source;             // in the source checkpoint
  TensorEntry target;             // in the group's file; offset is a multiple of kStoreAlignment
  std::vector<float> importance;  // StoreTensor's, as the next two
  std::vector<float> row_scale, column_scale;
  std::vector<TensorEntry> sources;  // of one that is made; else empty
  std::function<std::vector<std::byte>(const std::vector<std::vector<std::byte>>&)> make;
  std::function<RowsQuantiser()> prepare;  // StoreTensor's
};

/// A file of the store, laid out.
struct PlannedGroup {
  std::string name;
  std::string file;
  std::string header;  // the file's first bytes
  std::vector<PlannedTensor> tensors;
  int64_t file_bytes = 0;  // a multiple of kStoreAlignment
};

struct ConvertPlan {
  std::vector<PlannedGroup> groups;
  int64_t total_bytes = 0;
  std::string source_identity;  // hexadecimal; names, sizes and tensor table of the source
};

/// Errors: kUser (no groups, bad or repeated names, unknown source tensor, conversion between types
/// that cannot be).
ConvertPlan plan_conversion(const Checkpoint& source, std::span<const StoreGroup> groups);
/// Hexadecimal name of the source as it is now (times of change too) and everything that the plan
/// says.
std::string run_identity(const Checkpoint& source, const ConvertPlan& plan,
                         std::string_view quantiser_name);

}  // namespace sluice::io
