#pragma once
// What computes one (sublayer, micro-batch) at a time on the compute lanes: the CPU itself (also as
// an emulated device), or a GPU. One thread at a time.
#include <functional>
#include <optional>
#include <span>

#include "kernels/attention.h"
#include "kernels/quantised_linear.h"
#include "src/engine/runners/kernel_watch.h"
#include "src/engine/runners/layer_ops.h"
#include "src/engine/stores/attention_exchange.h"
#include "src/engine/stores/hidden_store.h"
#include "src/engine/stores/kv_store.h"
#include "src/engine/stores/recent_kv.h"
#include "src/engine/stores/weight_store.h"
#include "src/schedule/task.h"

namespace sluice {

/// How the token after a needed row is to be chosen.
struct TokenRequest {
  const sampling::Sampler* sampler;
  sampling::History history;  ///< its mask is valid until the next request
};

/// Takes what the last sublayer gives, of one needed row at a time, in rising order; of some that
/// want no logits the rows that these would be made of, before those of others.
class LogitsConsumer {
 public:
  virtual ~LogitsConsumer() = default;
  /// Where a row's logits are for choosing a token and nothing else: how. A runner whose logits are
  /// elsewhere may then choose it there and call take_token(); else it calls take_logits().
  virtual std::optional<TokenRequest> wanted_token(const MicroBatch& batch,
                                                   size_t needed_index) = 0;
  virtual void take_token(const MicroBatch& batch, size_t needed_index,
                          sampling::Choice choice) = 0;
  /// [vocab_size], valid only during the call.
  virtual void take_logits(const MicroBatch& batch, size_t needed_index,
                           std::span<const float> logits) = 0;
  /// Whether a row is wanted as it is behind the final norm, and no logits of it: then
  /// take_hidden() gets it, [hidden_size] f32, valid only during the call.
  virtual bool wants_hidden(const MicroBatch& batch, size_t needed_index) = 0;
  virtual void take_hidden(const MicroBatch& batch, size_t needed_index,
                           std::span<const float> row) = 0;
};

/// A product that has been computed; its rows are in host memory.
struct SeenProduct {
  size_t sublayer;
  size_t weight;  ///< the matrix, an index of SublayerShape::weights
  size_t expert;  ///< of experts' matrices; else 0
  const MicroBatch* batch;
  const int32_t* row_ids;  ///< [in.rows] rows of the batch that they are; null: all, in order
  Rows in, out;
};
/// Sees the products of linear layers, experts and an untied head, on the compute lane; may change
/// what came out.
using ProductObserver = std::function<void(const SeenProduct& product)>;

/// The experts that a router chose for the rows of a micro-batch.
struct RoutedRows {
  int64_t pass;
  size_t sublayer;
  const MicroBatch* batch;
  std::span<const RoutedTo> choices;  ///< [batch's rows, chosen]
  int64_t chosen;
};
/// Sees them, on the compute lane, while the pass runs.
using ChoiceObserver = std::function<void(const RoutedRows& rows)>;

/// What a runner works on.
struct RunnerParts {
  const BoundModel* model;
  WeightStore* weights;
  KvStore* kv;
  RecentKv* recent_kv;
  HiddenStore* hidden;
  AttentionExchange* exchange;
  kernels::QuantisedOptions compute;
  AttentionShapes attention;   ///< by group of layers
  int64_t micro_batch_tokens;  ///< most rows of a micro-batch
  int64_t host_rows;           ///< of these, where the host computes beside a device
  int threads;
  ProductObserver observe_product;       ///< may be empty
  ChoiceObserver observe_choices;        ///< may be empty
  policy::KernelTally* tally = nullptr;  ///< of the kernels on the host; may be null
  bool fuses_operators = true;
  bool keeps_spans = false;  ///< for a trace
  /// Where experts that are computed one by one leave their answers; empty: none are.
  std::span<float> expert_answers = {};
  int64_t adapter_rank = 0;  ///< the largest of adapters that requests may choose; 0: none
  /// [sublayer] For which sublayer its route guesses too (guessed_after()); -1, or empty: none.
  std::vector<int32_t> guessed_after = {};

  const kernels::AttentionShape& attention_of(const StatePlace& at) const noexcept {
    return attention[static_cast<size_t>(at.group)];
  }
  /// Whether products with such weights take x in f32, whatever others compute in: activations
  /// become 8-bit numbers where they are multiplied, and f16 and f32 weights are multiplied
  /// exactly.
  bool takes_f32(const WeightFormat& format) const noexcept {
    return format.is_quantised() ? kernels::options_for(format, compute).activations !=
                                       kernels::ActivationFormat::k16Bit
                                 : format.dtype != DType::kBF16;
  }
};

/// Rows of logits computed at a time.
constexpr int64_t kLogitRows = 64;

class SublayerRunner {
 public:
  virtual ~SublayerRunner() = default;
  /// Computes task's sublayer for `batch` (number `batch_index` of its pass); done when it returns.
  virtual void run(const Task& task, const MicroBatch& batch, size_t batch_index,
                   LogitsConsumer& consumer) = 0;
  /// Bytes that in-place rows have sent over the link in all.
  virtual int64_t exchanged_down_bytes() const noexcept = 0;
  virtual int64_t exchanged_up_bytes() const noexcept = 0;
  /// Times that the host has waited for a device's queue, in all.
  virtual int64_t hand_overs() const noexcept = 0;
  /// Seconds that the host has multiplied rows in place while they held the device's lane.
  virtual double inplace_seconds() const noexcept = 0;
  using Clock = std::chrono::steady_clock;
  /// When the host multiplied rows in place, since the last call; of RunnerParts::keeps_spans.
  struct Span {
    Clock::time_point begin;
    Clock::time_point end;
  };
  virtual std::vector<Span> take_inplace_spans() = 0;
  /// Where the router of the last task has sent its rows, and what was guessed of the next.
  virtual Routed routed() const = 0;
};

}  // namespace sluice
