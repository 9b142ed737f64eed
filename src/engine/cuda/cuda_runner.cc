#include "src/engine/cuda/cuda_runner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/int8_linear.h"
#include "src/base/error.h"

namespace sluice {

namespace {
// What the host computes with comes first, the staging is at the end.
std::span<std::byte> staging_part(const DeviceNeed& need, std::span<std::byte> host_workspace) {
  return host_workspace.last(static_cast<size_t>(host_staging_bytes(need)));
}

bool multiplies_int8(const RunnerParts& parts, const WeightFormat& format) {
  return parts.compute.activations == kernels::ActivationFormat::kInt8 &&
         cuda::takes_int8_rows(format);
}

bool multiplies_fp8(const RunnerParts& parts, const WeightFormat& format) {
  return parts.compute.activations == kernels::ActivationFormat::kFp8 &&
         kernels::takes_fp8_activations(format);
}

// Rounding to fp8 wants all of a row first, and so does one scale for a whole row where several
// blocks write it: done where it is multiplied.
RunnerFusing fusing_of(const RunnerParts& parts, bool has_bf16) {
  using Kind = Operator::Kind;
  RunnerFusing fusing;
  fusing.has_rotating_attention = true;
  fusing.puts_off_additions = true;
  const auto takes_bf16 = [model = &parts.model->shape(), has_bf16](const WeightFormat& format) {
    return narrow_type_of(format, model->weight_dtype, has_bf16) == DType::kBF16;
  };
  fusing.input_of = [parts, takes_bf16](const WeightFormat& format,
                                        bool has_own_rows) -> ProductInput {
    if (!has_own_rows || (!format.is_quantised() && format.dtype == DType::kF32)) return {};
    if (multiplies_int8(parts, format)) return {ProductInput::Narrow::kNone, true};
    if (multiplies_fp8(parts, format)) return {ProductInput::Narrow::kFp8, true};
    return {takes_bf16(format) ? ProductInput::Narrow::kBF16 : ProductInput::Narrow::kF16, false};
  };
  const auto writes_copies = [](Kind writer) {
    return writer == Kind::kNormHidden || writer == Kind::kNorm || writer == Kind::kActivate ||
           writer == Kind::kGate;
  };
  // Rows of a norm are within f16's range; of any others the product finds the scale first.
  const ModelShape* const model = &parts.model->shape();
  fusing.writes_narrow = [=](Kind writer, const WeightShape& weight) {
    const bool is_norm = writer == Kind::kNormHidden || writer == Kind::kNorm;
    return writes_copies(writer) && (is_norm || takes_bf16(model->format_of(weight)));
  };
  fusing.writes_codes = [=](Kind writer, const WeightShape& weight) {
    if (!writes_copies(writer) || !multiplies_int8(parts, weight.quantised)) return false;
    const bool has_whole_rows = writer == Kind::kNormHidden || writer == Kind::kNorm;
    return has_whole_rows ||
           cuda::can_quantise_slices(cuda::int8_rows(weight.quantised, 1, weight.cols, nullptr));
  };
  return fusing;
}
}  // namespace

CudaRunner::CudaRunner(const RunnerParts& parts, CudaDevice& device, std::span<std::byte> workspace,
                       std::span<std::byte> host_workspace, bool uses_graphs)
    : CudaRunner(cuda::DeviceScope(device.index()), parts, device, workspace, host_workspace,
                 uses_graphs) {}

CudaRunner::CudaRunner(const cuda::DeviceScope&, const RunnerParts& parts, CudaDevice& device,
                       std::span<std::byte> workspace, std::span<std::byte> host_workspace,
                       bool uses_graphs)
    : OperatorRunner(parts, fusing_of(parts, device.properties().has_bf16)),
      device_(device),
      need_{&parts.model->shape(),     parts.attention,
            parts.micro_batch_tokens,  device.properties().multiprocessors,
            parts.compute.activations, device.properties().has_fp8,
            parts.adapter_rank,        device.slab_bytes()},
      areas_(split_device_workspace(need_, workspace)),
      staging_(split_staging(need_, staging_part(need_, host_workspace))),
      host_(parts, host_workspace.first(host_workspace.size() -
                                        staging_part(need_, host_workspace).size())),
      dense_(areas_.dense.data()),
      sampler_(parts.model->shape().vocab_size, logit_rows(need_), areas_.sampling,
               staging_.sampling),
      waiting_(is_resident() && !parts.kv->has_lower_pages() ? cuda::Waiting::kSpins
                                                             : cuda::Waiting::kSleeps),
      events_(waiting_),
      tables_(areas_.tables, staging_.tables, device.compute_stream()),
      attention_(parts.attention.size()),
      // A graph has the pages of a recurrent state in it, and passes have others; a mixture's
      // experts are chosen on the host.
      graphs_(device.compute_stream(), uses_graphs && is_resident() &&
                                           parts.model->shape().fixed_state_bytes() == 0 &&
                                           parts.model->shape().num_experts == 1) {
  cuda::fill_zero(areas_.counters.data(), static_cast<int64_t>(areas_.counters.size()), stream());
  const auto& sublayers = parts_.model->shape().sublayers;
  for (size_t i = 0; i < sublayers.size(); ++i)
    for (const Operator& op : parts_.model->family().program(i).operators) {
      if (op.kind != Operator::Kind::kAttend || op.weight < 0) continue;
      host_vectors_.sinks[parts_.weights->vector(i, static_cast<size_t>(op.weight))];
    }
}

CudaRunner::~CudaRunner() {
  try {
    const cuda::DeviceScope scope(device_.index());
    cuda::synchronize(stream());
  } catch (const Error&) {
    // Told by the task that queued it.
  }
}

cuda::SplitSpace CudaRunner::split_space() const noexcept {
  return {reinterpret_cast<float*>(areas_.linear.data()),
          reinterpret_cast<uint32_t*>(areas_.counters.data())};
}

void CudaRunner::run(const Task& task, const MicroBatch& batch, size_t batch_index,
                     LogitsConsumer& consumer) {
  // On the host's own lane, while the device's tasks go on below.
  if (task.compute().step == ComputeStep::kHostAttention) {
    if (!lane_team_) lane_team_.emplace(parts_.threads);
    const Team::Use use(*lane_team_);
    kernels::AttentionShape shape = attention_shape(task);
    if (shape.sinks) shape.sinks = host_vectors_.sinks.at(shape.sinks).data();
    return host_.attention(task, batch, sublayer_of(task).state, shape);
  }
  const cuda::DeviceScope scope(device_.index());
  begin(task, batch, batch_index, consumer);
  if (!scales_norms_) scales_norms_ = has_large_norms();
  // Staging that queued tasks read is not written again before they have run.
  if (!tables_.has_room(task_table_bytes(need_))) wait_for_stream();
  if (sublayer_->kind == SublayerKind::kEmbed || tables_of_ != batch_) begin_batch();
  try {
    if (step_ == PassGraphs::Step::kRecord) recorded_.push_back(task);
    if (rows_ > 0 && step_ != PassGraphs::Step::kReplay) compute(areas_.rows, rows_);
    if (sublayer_->kind == SublayerKind::kHead && step_ != PassGraphs::Step::kRun)
      finish_graph(batch_index);
  } catch (...) {
    graphs_.abandon();
    recorded_.clear();
    step_ = PassGraphs::Step::kRun;
    throw;
  }
  if (std::string notice = dense_.take_notice(); !notice.empty())
    device_.notices()->add(std::move(notice));
  // An adapter's memory is free when its sequences have ended: nothing that has been queued may
  // still read it then. Logits are waited for.
  const bool has_no_logits = sublayer_->kind == SublayerKind::kHead && rows_ == 0;
  if (has_no_logits && parts_.adapter_rank > 0) wait_for_stream();
  if (task.compute().hands_over()) wait_for_stream();
}

void CudaRunner::settle_stream() {
  ++exchanged_.hand_overs;
  events_.queued_is_done.record(stream());
  events_.queued_is_done.synchronize();
}

void CudaRunner::wait_for_stream() {
  settle_stream();
  tables_.reset();
  attention_.assign(attention_.size(), {});
}

bool CudaRunner::is_resident() const {
  const WeightStore& weights = *parts_.weights;
  if (weights.ring_bytes() > 0 || weights.host_ring_bytes() > 0 ||
      !weights.inplace_memory().empty())
    return false;
  const auto& sublayers = parts_.model->shape().sublayers;
  for (size_t i = 0; i < sublayers.size(); ++i)
    for (size_t j = 0; j < sublayers[i].weights.size(); ++j)
      if (sublayers[i].weights[j].kind == WeightKind::kTable &&
          weights.resident_table(i, j).rows < sublayers[i].weights[j].rows)
        return false;
  return true;
}

// Layers' pages lie alike.
bool CudaRunner::shares_pages() const noexcept {
  return !batch_->stages_pages() && batch_->lower_rows == 0;
}

// One token of each sequence, and nothing of it or its sequences elsewhere.
bool CudaRunner::may_be_graph() const {
  const auto is_one = [](const Chunk& chunk) { return chunk.count == 1; };
  return graphs_.is_used() && batch_->is_alone && shares_pages() &&
         task_.compute().step == ComputeStep::kWhole && rows_ > 0 && rows_ <= logit_rows(need_) &&
         std::ssize(batch_->needed_rows) == rows_ && hidden_.front().rows == rows_ &&
         std::all_of(batch_->chunks.begin(), batch_->chunks.end(), is_one) &&
         wanted_hidden(0, rows_) == 0;
}

void CudaRunner::begin_batch() {
  tables_.forget();
  attention_.assign(attention_.size(), {});
  tables_of_ = batch_;
  step_ = PassGraphs::Step::kRun;
  if (sublayer_->kind != SublayerKind::kEmbed || !may_be_graph()) return;
  // Tables are where they were when the graph was recorded.
  if (!tables_.is_empty()) wait_for_stream();
  tables_.collect();
  tables_.ids(*batch_);
  tables_.positions(*batch_);
  tables_.needed(*batch_);
  PassGraphs::Kind kind{rows_, {}, adapters_kind()};
  bool has_tiles = false;
  for (size_t group = 0; group < attention_.size(); ++group) {
    const kernels::AttentionShape& shape = parts_.attention[group];
    const auto chunks = device_chunks({static_cast<int32_t>(group), 0});
    // Of the last group the pages are the last of the tables; others must not move what is behind.
    const bool is_last = group + 1 == attention_.size();
    if (!is_last)
      page_addresses_.resize(std::min(std::bit_ceil(page_addresses_.size()),
                                      static_cast<size_t>(most_pages(shape, need_.tokens))));
    attention_[group] =
        tables_.attention(shape, chunks, page_addresses_, rows_, need_.multiprocessors,
                          cuda::attention_most_items(shape, need_.tokens, need_.multiprocessors));
    const cuda::AttentionPlan& plan = attention_[group]->plan;
    kind.attention.push_back({std::ssize(plan.items), std::ssize(plan.merges),
                              is_last ? 0 : std::ssize(page_addresses_)});
    has_tiles = has_tiles || plan.tile_items > 0;
  }
  tables_.send();
  if (!has_tiles) step_ = graphs_.begin(kind);
}

std::vector<int64_t> CudaRunner::adapters_kind() {
  if (adapters_.runs.empty()) return {};
  // Each sequence has one row, whose logits are needed.
  tables_.adapters(RowsOf::kNeeded, needed_adapter_runs(*batch_), rows_);
  std::vector<int64_t> kind{tables_.adapters(RowsOf::kAll, adapters_.runs, rows_).count};
  const auto& sublayers = parts_.model->shape().sublayers;
  for (size_t i = 0; i < sublayers.size(); ++i)
    for (size_t weight = 0; weight < sublayers[i].weights.size(); ++weight)
      kind.push_back(most_rank(i, weight));
  return kind;
}

void CudaRunner::finish_graph(size_t batch_index) {
  const std::vector<Task> recorded = std::exchange(recorded_, {});
  if (std::exchange(step_, PassGraphs::Step::kRun) == PassGraphs::Step::kRecord &&
      !graphs_.finish()) {
    for (const Task& task : recorded) {
      begin(task, *batch_, batch_index, *consumer_);
      compute(areas_.rows, rows_);
    }
    return;
  }
  hand_over(reinterpret_cast<float*>(areas_.logits.data()), 0, rows_,
            parts_.model->shape().vocab_size);
}

bool CudaRunner::multiplies_int8(const WeightFormat& format) const noexcept {
  return sluice::multiplies_int8(parts_, format);
}

bool CudaRunner::multiplies_fp8(const WeightFormat& format) const noexcept {
  return sluice::multiplies_fp8(parts_, format);
}

const float* CudaRunner::constant(std::span<const float> values) {
  for (const auto& [here, there] : constants_)
    if (here == values.data()) return there;
  const int64_t begin = std::ssize(constants_) * constant_bytes(need_);
  SLUICE_ASSERT(begin + static_cast<int64_t>(values.size_bytes()) <=
                    static_cast<int64_t>(areas_.constants.size()),
                "a family has few tables of frequencies");
  auto* there = reinterpret_cast<float*>(areas_.constants.data() + begin);
  cuda::copy_to_device(there, values.data(), static_cast<int64_t>(values.size_bytes()), stream());
  constants_.emplace_back(values.data(), there);
  return there;
}

// Tokens are chosen where the logits are; rows that are wanted themselves come to the host.
void CudaRunner::hand_over(float* logits, int64_t first, int64_t rows, int64_t vocab_size) {
  auto* staged = reinterpret_cast<float*>(staging_.logits.data());
  const auto fetch = [&](int64_t row, int64_t count) {
    cuda::copy_to_host(staged + row * vocab_size, logits + row * vocab_size, count * vocab_size * 4,
                       stream());
  };
  constexpr int64_t kHost = -1, kGiven = -2;
  std::vector<int64_t> places;  // among what the sampler has
  int64_t sampled = 0;
  sampler_.begin();
  for (int64_t row = 0; row < rows; ++row) {
    if (wants_hidden(first + row)) {
      places.push_back(kGiven);
      continue;
    }
    const auto request = consumer_->wanted_token(*batch_, static_cast<size_t>(first + row));
    places.push_back(request && sampler_.add(row, *request) ? sampled++ : kHost);
  }
  // Neighbours together.
  for (int64_t row = 0, end = 0; row < rows; row = end) {
    const auto is_wanted = [&](int64_t at) { return places[static_cast<size_t>(at)] == kHost; };
    for (end = row + 1; is_wanted(row) && end < rows && is_wanted(end);) ++end;
    if (is_wanted(row)) fetch(row, end - row);
  }
  sampler_.queue(logits, stream());
  wait_for_stream();
  for (int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<size_t>(first + row);
    const int64_t place = places[static_cast<size_t>(row)];
    if (place == kGiven) continue;
    if (place != kHost) {
      if (auto choice = sampler_.choice(static_cast<size_t>(place))) {
        consumer_->take_token(*batch_, index, std::move(*choice));
        continue;
      }
      fetch(row, 1);
      wait_for_stream();
    }
    consumer_->take_logits(*batch_, index,
                           {staged + row * vocab_size, static_cast<size_t>(vocab_size)});
  }
}

// Through the room of logits, some rows at a time.
void CudaRunner::hand_hidden_over(const Rows& in, int64_t first) {
  auto* staged = reinterpret_cast<float*>(staging_.logits.data());
  const int64_t together = std::ssize(staging_.logits) / (4 * in.cols);
  SLUICE_ASSERT(together > 0 && in.stride == in.cols, "logits take more room than what makes them");
  for (int64_t row = 0; row < in.rows; row += together) {
    const int64_t count = std::min(together, in.rows - row);
    cuda::copy_to_host(staged, in.data + row * in.stride, count * in.cols * 4, stream());
    wait_for_stream();
    give_hidden({staged, count, in.cols, in.cols}, first + row);
  }
}

}  // namespace sluice
