#include "io/convert/convert_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "io/checkpoint/element_conversion.h"
#include "io/checkpoint/safetensors.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::io {

namespace {

// FNV-1a, 64 bits: names a text; not a checksum of data.
class TextHash {
 public:
  void add(std::string_view text) {
    for (const char c : text) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    state_ = (state_ ^ 0xffu) * 0x100000001b3u;  // ends the text: ("ab", "c") is not ("a", "bc")
  }
  void add(int64_t number) { add(fmt::format("{}", number)); }
  void add(const TensorEntry& tensor) {
    add(tensor.name);
    add(dtype_name(tensor.dtype));
    add(format_shape(tensor.shape));
    add(tensor.file_index);
    add(tensor.offset);
  }
  std::string hexadecimal() const { return fmt::format("{:016x}", state_); }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

[[noreturn]] void refuse(const std::string& problem, const char* mend = "") {
  throw Error(ErrorKind::kUser, problem, mend);
}

bool is_group_name(const std::string& name) {
  const auto is_allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name[0] != '.' && name.size() <= 100 &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

TensorEntry plan_target(const TensorEntry& source, const StoreTensor& wanted) {
  TensorEntry target{.name = wanted.store_name,
                     .dtype = source.dtype,
                     .quantised = source.quantised,
                     .shape = source.shape,
                     .bytes = source.bytes};
  if (source.quantised.is_quantised()) {
    if (wanted.to && *wanted.to != source.quantised)
      refuse(fmt::format("tensor {} is {} and cannot become {}", in_quotes(source.name),
                         format_name(source.quantised), format_name(*wanted.to)),
             "convert from the checkpoint that it was quantised from, or add `allow_requantise`");
    return target;
  }
  if (wanted.to && wanted.to->is_quantised()) {
    if (!is_weight_dtype(source.dtype))
      refuse(fmt::format("tensor {} is {} and cannot be quantised", in_quotes(source.name),
                         dtype_name(source.dtype)));
    const std::optional<int64_t> bytes = quantised_bytes(source.shape, *wanted.to);
    if (!bytes)
      refuse(
          fmt::format("tensor {} of shape {} cannot be {}: it is no matrix of up to 65536 columns",
                      in_quotes(source.name), format_shape(source.shape), format_name(*wanted.to)));
    target.dtype = DType::kU8;
    target.quantised = *wanted.to;
    target.bytes = *bytes;
    return target;
  }
  if (wanted.to) target.dtype = wanted.to->dtype;
  if (!can_convert(source.dtype, target.dtype))
    refuse(fmt::format("tensor {} is {} and cannot be converted to {}", in_quotes(source.name),
                       dtype_name(source.dtype), dtype_name(target.dtype)));
  const std::optional<int64_t> bytes = tensor_bytes(target.shape, target.dtype);
  if (!bytes)
    refuse(fmt::format("tensor {} becomes too large as {}", in_quotes(source.name),
                       dtype_name(target.dtype)));
  target.bytes = *bytes;
  return target;
}

// Lays the tensors out from the start of the data, fills up to each alignment, and makes the header
// that says so.
void lay_out(PlannedGroup& group, int32_t group_index) {
  std::vector<HeaderTensor> entries;
  int64_t at = 0;
  for (PlannedTensor& tensor : group.tensors) {
    tensor.target.file_index = group_index;
    tensor.target.offset = at;  // from the start of the data, for now
    const TensorEntry filed = as_filed(tensor.target);
    entries.push_back({filed.name, filed.dtype, filed.shape, at, at + filed.bytes});
    at += tensor.target.bytes;
    const int64_t next = round_up(at, kStoreAlignment);
    if (next > at)
      entries.push_back({fmt::format("{}{}", kStorePadPrefix, entries.size()),
                         DType::kU8,
                         {next - at},
                         at,
                         next});
    at = next;
  }
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {std::string(kStoreMetadataKey), fmt::format("{}", kStoreVersion)}};
  group.header = format_safetensors_header(entries, metadata, kStoreAlignment);
  const auto header_bytes = static_cast<int64_t>(group.header.size());
  for (PlannedTensor& tensor : group.tensors) tensor.target.offset += header_bytes;
  group.file_bytes = header_bytes + at;
}

}  // namespace

ConvertPlan plan_conversion(const Checkpoint& source, std::span<const StoreGroup> groups) {
  if (groups.empty()) refuse("a packed store needs at least one group of tensors");
  ConvertPlan plan;
  std::unordered_set<std::string> group_names;
  std::unordered_set<std::string> tensor_names;
  for (const StoreGroup& group : groups) {
    if (!is_group_name(group.name))
      refuse(fmt::format("{} cannot name a group's file", in_quotes(group.name)));
    if (!group_names.insert(group.name).second)
      refuse(fmt::format("two groups are called {}", in_quotes(group.name)));
    PlannedGroup planned{.name = group.name, .file = group.name + ".safetensors"};
    for (const StoreTensor& wanted : group.tensors) {
      const TensorEntry* found = source.find(wanted.source_name);
      if (found == nullptr)
        refuse(fmt::format("{}: has no tensor {}, which group {} needs", source.folder().string(),
                           in_quotes(wanted.source_name), group.name),
               "check that the model's kind is what its config.json says");
      if (wanted.store_name.empty() || wanted.store_name.starts_with("__"))
        refuse(
            fmt::format("{} cannot name a tensor of a packed store", in_quotes(wanted.store_name)));
      if (!tensor_names.insert(wanted.store_name).second)
        refuse(fmt::format("two tensors of the store are called {}", in_quotes(wanted.store_name)));
      if (!wanted.make) {
        planned.tensors.push_back({*found,
                                   plan_target(*found, wanted),
                                   wanted.importance,
                                   wanted.row_scale,
                                   wanted.column_scale,
                                   {},
                                   {},
                                   wanted.prepare});
        continue;
      }
      PlannedTensor made{*found, wanted.made, {}, {}, {}, {}, wanted.make, {}};
      for (const std::string& name : wanted.sources) {
        const TensorEntry* part = source.find(name);
        if (part == nullptr)
          refuse(fmt::format("{}: has no tensor {}", source.folder().string(), in_quotes(name)));
        made.sources.push_back(*part);
      }
      planned.tensors.push_back(std::move(made));
    }
    lay_out(planned, static_cast<int32_t>(plan.groups.size()));
    plan.total_bytes += planned.file_bytes;
    plan.groups.push_back(std::move(planned));
  }
  TextHash hash;
  for (const CheckpointFile& file : source.files()) {
    hash.add(file.path.filename().string());
    hash.add(file.bytes);
  }
  for (const TensorEntry& tensor : source.tensors()) hash.add(tensor);
  plan.source_identity = hash.hexadecimal();
  return plan;
}

std::string run_identity(const Checkpoint& source, const ConvertPlan& plan,
                         std::string_view quantiser_name) {
  TextHash hash;
  hash.add(quantiser_name);
  hash.add(plan.source_identity);
  for (const CheckpointFile& file : source.files()) {
    std::error_code ignored;
    const auto changed = std::filesystem::last_write_time(file.path, ignored);
    hash.add(static_cast<int64_t>(changed.time_since_epoch().count()));
  }
  for (const PlannedGroup& group : plan.groups) {
    hash.add(group.file);
    hash.add(group.header);
    for (const PlannedTensor& tensor : group.tensors) {
      hash.add(tensor.source);
      for (const TensorEntry& part : tensor.sources) hash.add(part);
      if (tensor.target.quantised.is_quantised()) hash.add(format_name(tensor.target.quantised));
    }
  }
  return hash.hexadecimal();
}

int64_t packed_store_bytes(const Checkpoint& source, std::span<const StoreGroup> groups) {
  return plan_conversion(source, groups).total_bytes;
}

}  // namespace sluice::io
