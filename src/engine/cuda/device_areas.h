#pragma once
// How the GPU's workspace is divided, and the host memory that goes with it.
#include <span>

#include "kernels/attention.h"
#include "kernels/cuda/multiprocessors.h"
#include "kernels/quantised_linear.h"
#include "src/engine/stores/recent_kv.h"
#include "src/shape/model_shape.h"

namespace sluice {

/// Rows of a quantised matrix that are multiplied densely are made plain so many bytes at a time:
/// enough for a full wave of blocks.
constexpr int64_t kSlabBytes = int64_t{64} << 20;

/// Areas of the workspace, and tables within one, begin at multiples of this many bytes.
constexpr int64_t kLine = 256;

/// What the sizes depend on.
struct DeviceNeed {
  const ModelShape* model;
  AttentionShapes attention;  ///< sparse_positions: the longest context
  int64_t tokens;             ///< rows of a micro-batch, at most
  cuda::Multiprocessors multiprocessors;
  kernels::ActivationFormat activations;  ///< of quantised products
  bool has_fp8;                           ///< the device multiplies fp8 codes
  int64_t adapter_rank = 0;               ///< the largest of adapters; 0: there are none
  int64_t slab_bytes = kSlabBytes;
};

struct DeviceAreas {
  std::span<std::byte> rows;      ///< slots of programs, f32
  std::span<std::byte> narrow;    ///< 16-bit copy of the input of linear layers, and its scales
  std::span<std::byte> codes;     ///< the same in 8 bits, of kInt8 and kFp8 activations
  std::span<std::byte> linear;    ///< partial sums, or dequantised rows
  std::span<std::byte> counters;  ///< of split sums: zeros before the first product
  std::span<std::byte> dense;     ///< of DenseLinear
  std::span<std::byte> attention;
  std::span<std::byte> logits;
  std::span<std::byte> tables;     ///< positions, page tables: what the host plans for each task
  std::span<std::byte> sampling;   ///< of DeviceSampler
  std::span<std::byte> constants;  ///< a few tables of constant_bytes()
  std::span<std::byte> low_rank;   ///< of cuda::add_low_rank()
};
/// Entries of a micro-batch's page table, at most.
int64_t most_pages(const kernels::AttentionShape& shape, int64_t rows) noexcept;
/// Tables that one task sends up, at most, or those of all groups of layers in one pass;
/// DeviceAreas::tables takes several tasks'.
int64_t task_table_bytes(const DeviceNeed& need);
int64_t device_workspace_bytes(const DeviceNeed& need);
DeviceAreas split_device_workspace(const DeviceNeed& need, std::span<std::byte> workspace);

/// Parts of the host memory that a GPU's runner copies through.
struct StagingAreas {
  std::span<std::byte> gather;  ///< WeightStore::gather's
  std::span<std::byte> tables;  ///< what is sent to DeviceAreas::tables
  std::span<std::byte> rows;    ///< gathered table rows, f32
  std::span<std::byte> logits;
  std::span<std::byte> sampling;
};
int64_t host_staging_bytes(const DeviceNeed& need);
StagingAreas split_staging(const DeviceNeed& need, std::span<std::byte> staging);

/// Of a table of frequencies, at most.
int64_t constant_bytes(const DeviceNeed& need) noexcept;
/// Rows of logits at a time.
int64_t logit_rows(const DeviceNeed& need) noexcept;
/// Bytes of one row of W in a dense product of codes: they, and a sum for each of `rows` rows of x.
int64_t dense_row_bytes(int64_t columns, int64_t rows) noexcept;
/// Of the rows that a matrix of `format` (plain or quantised) is multiplied with. Codes take bf16
/// in a model whose plain weights are of it, else f16, whose rows have a scale each where they need
/// it.
DType narrow_type_of(const WeightFormat& format, DType plain_weights, bool has_bf16) noexcept;
/// Columns of 16-bit rows that a matrix of `cols` columns is multiplied with.
int64_t narrow_stride(int64_t cols) noexcept;

}  // namespace sluice
