#include "src/app/synthetic.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/mix.h"

namespace sluice::app {

namespace {
struct Source {
  float scale = 0;   // of uniform [-1, 1)
  float offset = 0;  // 1 for gains
};

Source source_for(const WeightShape& weight) {
  if (weight.kind == WeightKind::kVector)
    return weight.role.ends_with("bias") ? Source{0.02f, 0} : Source{0.1f, 1 - weight.added};
  return {std::sqrt(3.0f / static_cast<float>(weight.cols)), 0};  // uniform of variance 1 / cols
}

template <typename Convert, typename Element>
void fill(uint32_t key, int64_t first, Element* to, int64_t count, const Source& source,
          const Convert& convert) {
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint64_t>(first + i);
    const uint32_t bits =
        mix(static_cast<uint32_t>(index) * 0x9e3779b9u + key + static_cast<uint32_t>(index >> 32));
    const float unit = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
    to[i] = convert(source.offset + source.scale * unit);
  }
}

// What there is to make: names, shapes, and how each element comes about.
struct Weights {
  std::vector<io::NewTensor> tensors;
  io::TensorGenerator generate;
  int64_t bytes = 0;
};

// `as_theirs`: transposed where checkpoints of other tools are.
Weights weights_of(const ModelShape& shape, const SyntheticOptions& options, bool as_theirs) {
  Weights out;
  std::vector<Source> sources;
  for (const SublayerShape& sublayer : shape.sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (weight.shares_table) continue;
      for (int64_t expert = 0; expert < weight.tensors(); ++expert) {
        const WeightShape one = weight.of_expert(expert);
        std::vector<int64_t> dims = one.kind == WeightKind::kVector
                                        ? std::vector<int64_t>{one.cols}
                                        : std::vector<int64_t>{one.rows, one.cols};
        if (as_theirs && one.is_transposed) std::swap(dims[0], dims[1]);
        out.tensors.push_back({one.names.front(), options.dtype, std::move(dims)});
        sources.push_back(source_for(one));
      }
      out.bytes += weight.rows * weight.cols * dtype_bytes(options.dtype);
    }
  const auto seed = static_cast<uint32_t>(options.seed * 0x9e3779b97f4a7c15u >> 32);
  out.generate = [sources = std::move(sources), seed, dtype = options.dtype](
                     size_t tensor, int64_t first, std::span<std::byte> to) {
    const uint32_t key = mix(seed + static_cast<uint32_t>(tensor));
    const int64_t count = static_cast<int64_t>(to.size()) / dtype_bytes(dtype);
    const Source& source = sources[tensor];
    if (dtype == DType::kF32)
      fill(key, first, reinterpret_cast<float*>(to.data()), count, source,
           [](float v) { return v; });
    else if (dtype == DType::kBF16)
      fill(key, first, reinterpret_cast<uint16_t*>(to.data()), count, source,
           [](float v) { return f32_to_bf16(v); });
    else
      fill(key, first, reinterpret_cast<uint16_t*>(to.data()), count, source,
           [](float v) { return f32_to_f16(v); });
  };
  return out;
}
}  // namespace

std::string with_dtype(const std::string& config_json, DType dtype) {
  auto json = nlohmann::ordered_json::parse(config_json);
  json.erase("dtype");
  json.erase("quantization_config");  // what is written is plain
  if (json.contains("text_config") && json["text_config"].is_object())
    json["text_config"].erase("quantization_config");
  json["torch_dtype"] = dtype == DType::kF32   ? "float32"
                        : dtype == DType::kF16 ? "float16"
                                               : "bfloat16";
  return json.dump(2) + "\n";
}

int64_t write_synthetic_model(const ModelShape& shape, const std::string& config_json,
                              const std::filesystem::path& folder,
                              const SyntheticOptions& options) {
  const Weights weights = weights_of(shape, options, true);
  io::write_sharded_safetensors(folder, weights.tensors, weights.generate, options.write);
  write_file(folder / "config.json", with_dtype(config_json, options.dtype));
  return weights.bytes;
}

SyntheticCheckpoint synthetic_checkpoint(const ModelShape& shape, const std::string& config_json,
                                         const SyntheticOptions& options) {
  Weights weights = weights_of(shape, options, false);
  std::vector<io::TensorEntry> entries;
  for (const io::NewTensor& tensor : weights.tensors)
    entries.push_back({.name = tensor.name,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .bytes = io::tensor_bytes(tensor.shape, tensor.dtype).value()});
  std::string config = with_dtype(config_json, options.dtype);
  io::Checkpoint checkpoint = io::Checkpoint::describe(std::move(entries), config);
  const int64_t element = dtype_bytes(options.dtype);
  return {std::move(checkpoint),
          [generate = std::move(weights.generate), element](const io::Piece& piece,
                                                            std::span<std::byte> to) {
            generate(static_cast<size_t>(piece.file_index), piece.offset / element, to);
          },
          std::move(config)};
}

}  // namespace sluice::app
