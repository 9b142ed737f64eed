#pragma once
// The operators of LayerOps on the CPU kernels, for one (sublayer, micro-batch) at a time. Owns the
// workspace that all of them share; allocates nothing after construction but small index vectors.
// An attention sublayer that is cut around attention on the host is walked twice: the first walk
// computes up to attend() and skips the rest, the second skips what comes before it.
#include <functional>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/quantised_linear.h"
#include "src/device/emulated_device.h"
#include "src/engine/attention_exchange.h"
#include "src/engine/hidden_store.h"
#include "src/engine/kv_store.h"
#include "src/engine/weight_store.h"
#include "src/model/layer_ops.h"

namespace sluice {

/// Logits of one needed row: handed over as soon as they exist, valid only during the call.
using LogitsConsumer = std::function<void(const MicroBatch& batch, size_t needed_index,
                                          std::span<const float> logits)>;

/// Sees the input rows of every linear layer, on the compute lane, before they are multiplied.
using InputObserver = std::function<void(size_t sublayer, std::string_view role, const Rows& in)>;

class LayerRunner final : public LayerOps {
 public:
  struct Parts {
    const BoundModel* model;
    WeightStore* weights;
    KvStore* kv;
    HiddenStore* hidden;
    AttentionExchange* exchange;
    EmulatedDevice* device;  ///< null: the CPU itself
    kernels::QuantisedOptions compute;
    kernels::AttentionShape attention;
    int64_t micro_batch_tokens;  ///< most rows of a micro-batch
    int threads;
    InputObserver observe_input;  ///< may be empty
  };

  /// `workspace` has at least workspace_bytes() of the same numbers, and so has `host_workspace`
  /// where the host computes beside a device. Errors: none.
  LayerRunner(const Parts& parts, std::span<std::byte> workspace,
              std::span<std::byte> host_workspace);

  /// What a micro-batch of `tokens` rows needs.
  static int64_t workspace_bytes(const ModelShape& model, const kernels::QuantisedOptions& compute,
                                 const kernels::AttentionShape& attention, int64_t tokens,
                                 int threads);

  /// Computes task's sublayer for `batch` (number `batch_index` of its pass).
  void run(const Task& task, const MicroBatch& batch, size_t batch_index,
           const LogitsConsumer& consumer);

  /// Operations of products and attention on the device since the last call.
  double take_device_flops() noexcept;
  /// Bytes that in-place rows have sent over the link in all.
  int64_t exchanged_down_bytes() const noexcept { return exchanged_down_; }
  int64_t exchanged_up_bytes() const noexcept { return exchanged_up_; }

  const SublayerShape& sublayer() const override { return *sublayer_; }
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

  /// Rows of logits computed at a time.
  static constexpr int64_t kLogitRows = 64;

 private:
  size_t weight_index(std::string_view role) const;
  const float* vector_or_null(std::string_view role) const;
  void apply_norm(const NormSpec& norm, const float* x, float* y, int64_t rows, int64_t cols) const;
  kernels::Activations activations(Rows in);
  void written(const Rows& rows);
  void product(const kernels::Activations& x, const std::byte* w, const WeightFormat& format,
               int64_t rows, const float* bias, float* y, int64_t ldy,
               std::span<std::byte> scratch);
  void multiply(const MatrixView& view, const kernels::Activations& x, const float* bias, float* y,
                int64_t ldy);

  void multiply_inplace(const MatrixView& view, const kernels::Activations& x, const float* bias,
                        float* y, int64_t ldy, Link::Clock::time_point input_arrives);
  void host_attention(const Task& task, const MicroBatch& batch);
  void attend_on_device(Rows q, Rows k, Rows v, Rows out);
  void keep_for_host(Rows q, Rows k, Rows v, Rows out) const;

  /// What one processor works in.
  struct Areas {
    std::span<std::byte> rows;  ///< matrices of workspace(); of the host: input and output rows
    std::span<std::byte> bf16;  ///< bf16 copy of the input of linear layers
    std::span<std::byte> linear;
    std::span<std::byte> attention;
    std::span<std::byte> logits;
    std::span<std::byte> gather;
  };
  Areas split(std::span<std::byte> workspace) const;

  Parts parts_;
  Areas areas_;
  Areas host_;

  const SublayerShape* sublayer_ = nullptr;
  const MicroBatch* batch_ = nullptr;
  const LogitsConsumer* consumer_ = nullptr;
  Task task_;
  bool skips_ = false;  // operators do nothing: the other half of a cut sublayer
  std::vector<HiddenStore::Piece> hidden_;
  int64_t rows_ = 0;                    // of workspace() matrices
  int64_t rows_used_ = 0;               // bytes of areas_.rows in use
  const float* bf16_source_ = nullptr;  // what areas_.bf16 holds a copy of
  int64_t bf16_elements_ = 0;
  double device_flops_ = 0;
  int64_t exchanged_down_ = 0;
  int64_t exchanged_up_ = 0;
  std::vector<std::byte*> page_addresses_;
  std::vector<int32_t> ids_;
};

}  // namespace sluice
