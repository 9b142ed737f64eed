#pragma once
// What every runner of LayerOps does alike, whatever it computes on: which task and micro-batch are
// at hand, where its weights, pages and rows are, and which operators of the sublayer's program the
// task asks for: all, or those on one side of attention on the host. Programs are fused once for
// what the runner can do. One thread at a time.
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/delta_rule.h"
#include "kernels/head_products.h"
#include "src/engine/passes/adapter_runs.h"
#include "src/engine/runners/host_compute.h"
#include "src/engine/runners/sublayer_runner.h"
#include "src/layer/fuse.h"

namespace sluice {

/// A chunk that is attended where its runner computes, and where its pages begin among all chunks'.
struct ChunkPages {
  const Chunk* chunk;
  size_t first_page;
};

/// What a runner does of the things that programs can be fused for.
struct RunnerFusing {
  bool has_rotating_attention = false;
  /// Additions go into norms where the pass is one micro-batch whose rows stay in memory.
  bool puts_off_additions = false;
  std::function<ProductInput(const WeightFormat&, bool has_own_rows)> input_of;
  std::function<bool(Operator::Kind writer, const WeightShape&)> writes_narrow;
  std::function<bool(Operator::Kind writer, const WeightShape&)> writes_codes;
};

class OperatorRunner : public SublayerRunner, protected LayerOps {
 public:
  int64_t exchanged_down_bytes() const noexcept final { return exchanged_.down; }
  int64_t exchanged_up_bytes() const noexcept final { return exchanged_.up; }
  int64_t hand_overs() const noexcept final { return exchanged_.hand_overs; }
  double inplace_seconds() const noexcept final { return inplace_.seconds; }
  Routed routed() const final;
  std::vector<Span> take_inplace_spans() final { return std::exchange(inplace_.spans, {}); }

 protected:
  OperatorRunner(const RunnerParts& parts, const RunnerFusing& fusing);

  const SublayerShape& sublayer_of(const Task& task) const {
    return parts_.model->shape().sublayers[static_cast<size_t>(task.sublayer)];
  }
  /// Makes a task's sublayer and rows the ones at hand.
  void begin(const Task& task, const MicroBatch& batch, size_t batch_index,
             LogitsConsumer& consumer);

  /// Executes what the task asks for of the sublayer's program; its slots lie in `area`, each with
  /// room for `padded_rows` rows.
  void compute(std::span<std::byte> area, int64_t padded_rows);

  /// How the task's layer attends; its slopes are the family's.
  kernels::AttentionShape attention_shape(const Task& task) const;

  /// To who observes products; `row_ids` as SeenProduct's.
  void show_product(int32_t weight, const int32_t* row_ids, const Rows& in, const Rows& out,
                    int64_t expert = 0) const {
    if (parts_.observe_product)
      parts_.observe_product({static_cast<size_t>(task_.sublayer), static_cast<size_t>(weight),
                              static_cast<size_t>(expert), batch_, row_ids, in, out});
  }

  /// Of the sublayer's weights, by the program's index.
  const float* vector_or_null(int32_t weight) const;
  MatrixView matrix(int32_t weight) const;

  /// What products of heads with their own rows take (Operator::kAbsorb, kExpand): the matrix in
  /// runs of rows, and of absorb what begins its output.
  struct HeadWork {
    kernels::HeadRows of;
    kernels::HeadOperands products;
    kernels::HeadOperands begin;
    int64_t moved = 0;
    int64_t cols = 0;
    double flops = 0;
    std::vector<kernels::MatrixRun> runs;
  };
  HeadWork absorb_work(const Operator& op, const Rows& in, const Rows& out) const;
  HeadWork expand_work(const Operator& op, const Rows& in, const Rows& out) const;

  /// A vector of `count` weights where the host reads it, brought there once; null: there is none.
  virtual const float* host_vector(int32_t weight, int64_t count) = 0;

  // Of experts.
  /// `count` values where the host reads them: where they are, or in `room`.
  virtual const float* on_host(const float* values, int64_t count, std::vector<float>& room) = 0;
  /// Lists of rows and of their weights where kernels read them.
  struct RoutedLists {
    const int32_t* rows;
    const float* weights;
  };
  virtual RoutedLists routed_lists(std::span<const int32_t> rows,
                                   std::span<const float> weights) = 0;
  virtual void clear(const Rows& out) = 0;
  /// out = the rows `ids` of `in`, one behind the other.
  virtual void gather_routed(const Rows& in, const int32_t* ids, const Rows& out) = 0;
  /// Copies whole rows to where they stay until all answers are there.
  virtual void keep_answer(const Rows& y, float* to) = 0;
  /// `bias` [out.cols] or null.
  virtual void multiply_expert(const MatrixView& matrix, const Rows& in, const float* bias,
                               const Rows& out) = 0;
  /// gate = the clamped gate of both; `biases` [2 gate.cols], of the two by turns, or null.
  virtual void gate_clamped(const ClampedGate& clamp, const float* biases, const Rows& gate,
                            const Rows& up) = 0;
  /// Whether it guesses what the next layer will ask for.
  virtual bool guesses() const noexcept { return false; }
  /// The rows `ids` of `out` += those of `in` times `weights`.
  virtual void add_routed(const Rows& in, const RoutedLists& to, const Rows& out) = 0;

  // Of experts that lie whole in host memory below a device: a layer's input comes down once for
  // all of them, beside what the device computes.
  virtual HostCompute& host() noexcept = 0;
  /// Begins to copy `in` to `to`, contiguous, in host memory.
  virtual void begin_down(const Rows& in, float* to) = 0;
  /// Until it is there.
  virtual void end_down() = 0;
  /// Copies contiguous rows of host memory up, for what the device computes next. Nobody writes
  /// them before the next end_down(), or before await_up() has waited for the copy.
  virtual void bring_up(const Rows& from, float* to) = 0;
  virtual void await_up() = 0;
  /// The host has computed experts since `begin`.
  virtual void end_host_experts(Clock::time_point begin, double flops) = 0;

  /// Of a layer with a recurrent state: its shape, and the chunks' runs of it.
  const RecurrentShape& recurrent_shape() const;
  std::vector<kernels::StateRun> state_runs() const;
  /// The chunks that are attended here, all but the host's; page_addresses_ has their pages there.
  std::vector<ChunkPages> device_chunks(const StatePlace& at);
  /// What the host needs, and what the second walk needs of the first, put into the exchange slot:
  /// `copy` brings `count` rows of `from` to contiguous rows at `to`.
  using RowCopy = std::function<void(float* to, const Rows& from, int64_t first, int64_t count)>;
  void keep_for_host(Rows q, Rows k, Rows v, Rows kept, Rows out, const RowCopy& copy) const;

  /// What the rows' adapters add to a weight, of rows [begin, begin + rows) and counted from there.
  std::span<const kernels::LowRankRun> changes_of(int32_t weight, int64_t begin, int64_t rows);

  /// Head only: whether a needed row is wanted without logits; how many of [first, first + rows);
  /// and hands those among `in` over, which are in host memory and begin with needed row `first`.
  bool wants_hidden(int64_t needed_row) const;
  int64_t wanted_hidden(int64_t first, int64_t rows) const;
  void give_hidden(const Rows& in, int64_t first);

  /// The host has multiplied rows in place since `begin`.
  void add_inplace(Clock::time_point begin);

  RunnerParts parts_;
  const SublayerShape* sublayer_ = nullptr;
  const MicroBatch* batch_ = nullptr;
  LogitsConsumer* consumer_ = nullptr;
  Task task_;
  std::vector<HiddenStore::Piece> hidden_;
  int64_t rows_ = 0;  // of slots
  struct {
    int64_t down = 0, up = 0;  // bytes of rows in place
    int64_t hand_overs = 0;
  } exchanged_;
  std::vector<std::byte*> page_addresses_;
  struct {
    std::vector<AdapterRun> runs;
    std::vector<kernels::LowRankRun> changes;  // changes_of() the last weight
  } adapters_;                                 // of the rows at hand

 private:
  struct {
    double seconds = 0;
    std::vector<Span> spans;
  } inplace_;  // rows that the host has multiplied
  // Programs of a pass's sublayers, equal ones once.
  struct Programs {
    std::vector<LayerProgram> distinct;
    std::vector<size_t> of;  // [sublayer]
    explicit Programs(std::vector<LayerProgram> all);
  };
  const LayerProgram& program() const;
  Rows rows_of(const View& view) const;
  void execute(const Operator& op);
  void add_changes(const Operator& op, Rows in, Rows out);
  void route(const Operator& op, Rows scores) final;
  void experts(const Operator& op, Rows in, Rows work, Rows out) final;
  /// What is gone through for each expert.
  struct ExpertWork {
    Rows in, work;
    MatrixView gates, ups, downs;
    RoutedLists lists;
    const float* input_weights;  ///< of the lists' rows; null: what goes in has none
    int64_t out_cols;
  };
  ExpertWork expert_work(const Operator& op, Rows in, Rows work, int64_t out_cols);
  std::span<const float> weights_of_answers(const Operator& op);
  int64_t routed_rows(int64_t expert) const;
  Rows answer(const Operator& op, const ExpertWork& of, int64_t expert);
  /// Experts that some of the rows at hand go to, by where their matrices lie, each in rising
  /// order.
  struct ExpertHomes {
    std::vector<int32_t> here;   ///< computed where the others are
    std::vector<int32_t> mixed;  ///< some matrices in host memory, which exchange rows of their own
    std::vector<int32_t> below;  ///< whole in host memory
  };
  void add_home(const ExpertWork& of, int32_t expert, ExpertHomes& out) const;
  void begin_down_experts(const ExpertWork& of);
  template <typename Take>
  void compute_below(const Operator& op, const ExpertWork& of, std::span<const int32_t> experts,
                     bool sends_each, const Take& take);
  void add_below(const Operator& op, const ExpertWork& of, std::span<const int32_t> experts,
                 Rows out);
  void some_experts(const Operator& op);
  void add_answers(const Operator& op);
  // What the next layer will ask for (expert_guesses.cc).
  void guess_next();
  bool guess_scores(const LayerProgram& program, const Operator& route, Rows scores, Rows room);
  void take_guesses(const Operator& route, const Rows& scores);

  std::vector<Programs> programs_;      // [class of pass]
  std::vector<Programs> of_one_batch_;  // likewise, for passes of one micro-batch; empty: the same
  std::vector<Rows> slots_;             // of the program at hand
  int64_t padded_rows_ = 0;             // that they have room for
  std::vector<RoutedTo> choices_;       // of the router before
  std::vector<int32_t> routed_rows_, routed_begin_;
  std::vector<float> routed_weights_;  // of these rows, and behind them as many ones
  std::vector<int32_t> guessed_;       // experts of the next layer, the surest first
};

}  // namespace sluice
