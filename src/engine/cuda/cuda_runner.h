#pragma once
// The operators of LayerOps on the CUDA kernels, for one (sublayer, micro-batch) at a time: queued
// on the compute stream. A task that other lanes wait for (its weights, KV or rows pass through
// rings and slots) is waited for at its end; of a resident model none is, and the host runs ahead
// of the GPU up to the logits. Rows are device memory; what the host plans for a task (positions,
// page tables, attention items) goes up through pinned staging, used round and round. Attention on
// the host cuts a sublayer in two walks, as in LayerRunner.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/rows.h"
#include "src/engine/cuda/cuda_device.h"
#include "src/engine/cuda/device_areas.h"
#include "src/engine/host_compute.h"
#include "src/engine/operator_runner.h"

namespace sluice {

class CudaRunner final : public OperatorRunner {
 public:
  /// `workspace` is the device's, of device_workspace_bytes(); `host_workspace` as
  /// Backend::make_runner says. Errors: kDevice.
  CudaRunner(const RunnerParts& parts, CudaDevice& device, std::span<std::byte> workspace,
             std::span<std::byte> host_workspace);
  /// Waits for what an error may have left queued: it works in memory that goes next.
  ~CudaRunner() override;

  void run(const Task& task, const MicroBatch& batch, size_t batch_index,
           const LogitsConsumer& consumer) override;

 private:
  Rows workspace(int64_t cols) override;
  void gather_tokens(std::string_view role, Rows out) override;
  void gather_positions(std::string_view role, int64_t offset, Rows out) override;
  void set_hidden(Rows in) override;
  void read_hidden(Rows out) override;
  void norm_hidden(const NormSpec& norm, Rows out) override;
  void norm_hidden_in_place(const NormSpec& norm) override;
  void add_to_hidden(Rows in) override;
  void read_needed_hidden(Rows out) override;
  void norm(const NormSpec& norm, Rows in_out) override;
  void add(Rows in_out, Rows in) override;
  void linear(std::string_view role, std::string_view bias, Rows in, Rows out) override;
  void rope(Rows in_out, int64_t heads, std::span<const float> inverse_frequencies,
            float factor) override;
  void attend(Rows q, Rows k, Rows v, Rows out) override;
  void activate(Activation activation, Rows in_out) override;
  void silu_mul(Rows gate, Rows up, Rows out) override;
  void logits(std::string_view role, Rows in) override;

  void gather(std::string_view role, std::span<const int32_t> ids, Rows out);
  void apply_norm(const NormSpec& norm, const float* x, float* y, const cuda::RowsShape& shape,
                  const cuda::Rows16& copy);
  /// The 16-bit copy of `in`, made unless it is there.
  cuda::Rows16 narrowed(Rows in);
  cuda::Rows16 narrow_area() const noexcept;
  void multiply(const MatrixView& view, Rows in, const float* bias, float* y, int64_t ldy);
  void multiply_rows(const MatrixView& view, Rows in, const std::byte* w, int64_t rows,
                     const float* bias, float* y, int64_t ldy);
  void attend_on_device(Rows q, Rows k, Rows v, Rows out);

  /// Sends `values` up: an address on the device, good until the task has been computed.
  template <typename T>
  const T* put(std::span<const T> values);
  void wait_for_stream();
  cuda::Stream stream() const noexcept { return device_.compute_stream(); }

  CudaDevice& device_;
  DeviceNeed need_;
  DeviceAreas areas_;
  StagingAreas staging_;
  HostCompute host_;
  cuda::DenseLinear dense_;
  cuda::Event input_is_down_;
  DType narrow_type_;
  int64_t narrow_stride_;
  int64_t tables_used_ = 0;             // bytes of the tables that queued work may read
  const int32_t* positions_ = nullptr;  // on the device; null until asked for
};

}  // namespace sluice
