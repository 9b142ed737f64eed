#include "src/app/routing_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/cache/routing_trace.h"

namespace sluice::app {

namespace {
constexpr int64_t kWriteBytes = int64_t{64} << 10;  // lines are written so many at a time

// What the lines of layers say: bytes of an expert, and of all else.
struct LayerBytes {
  int64_t expert = 0;
  int64_t dense = 0;
};

LayerBytes bytes_of(const ModelShape& shape, int64_t layer) {
  LayerBytes out;
  for (const SublayerShape& sublayer : shape.sublayers) {
    if (sublayer.layer_index != layer) continue;
    for (const WeightShape& weight : sublayer.weights) {
      const int64_t bytes = shape.rows_bytes(weight, weight.expert_rows());
      (weight.experts > 0 ? out.expert : out.dense) += bytes;
    }
  }
  return out;
}

std::string head_of(const BoundModel& model) {
  const ModelShape& shape = model.shape();
  RoutingTrace trace;
  trace.model = model.path().filename().string();
  trace.family = shape.family;
  trace.experts = shape.num_experts;
  trace.chosen = shape.experts_per_token;
  trace.layers.resize(static_cast<size_t>(shape.num_layers));
  std::vector<int64_t> dense(trace.layers.size());
  for (size_t i = 0; i < trace.layers.size(); ++i) {
    const LayerBytes bytes = bytes_of(shape, static_cast<int64_t>(i));
    trace.layers[i].expert_bytes = bytes.expert;
    dense[i] = bytes.dense;
  }
  return routing_trace_head(trace, dense);
}
}  // namespace

void require_experts(const BoundModel& model, const std::string& flag) {
  if (model.shape().num_experts > 1) return;
  throw Error(ErrorKind::kUser,
              fmt::format("{}: {} ({}) has no experts to choose among", flag,
                          model.path().filename().string(), model.shape().family),
              "leave it out, or give a mixture of experts");
}

RoutingRecorder::RoutingRecorder(std::string path, const BoundModel& model,
                                 std::function<void(std::string_view)> tell)
    : file_(std::move(path), O_WRONLY | O_CREAT | O_TRUNC), tell_(std::move(tell)) {
  for (const SublayerShape& sublayer : model.shape().sublayers)
    layers_.push_back(sublayer.layer_index);
  const std::string head = head_of(model);
  file_.write(head.data(), std::ssize(head), 0);
  written_ = whole_ = pass_begin_ = std::ssize(head);
}

RoutingRecorder::~RoutingRecorder() {
  if (is_over_) return;
  try {
    waiting_.resize(static_cast<size_t>(std::max<int64_t>(pass_begin_ - written_, 0)));
    write();
    if (!is_over_) file_.truncate(pass_begin_);
  } catch (const std::exception&) {  // nobody is left to be told
  }
}

void RoutingRecorder::begin_pass() {
  pass_begin_ = end();
  ++pass_;
}

void RoutingRecorder::take(const RoutedRows& rows) {
  if (is_over_) return;
  SLUICE_ASSERT(std::ssize(rows.choices) == rows.batch->rows() * rows.chosen,
                "a router chooses for every row");
  // Runs of an engine count their passes from 0.
  if (rows.pass != engine_pass_ || rows.sublayer < sublayer_) begin_pass();
  engine_pass_ = rows.pass;
  sublayer_ = rows.sublayer;
  RoutingLine line;
  line.layer = layers_[rows.sublayer];
  line.token.pass = pass_;
  for (const Chunk& chunk : rows.batch->chunks) {
    line.token.sequence = static_cast<int64_t>(chunk.sequence->id);
    for (int32_t i = 0; i < chunk.count; ++i) {
      line.token.position = int64_t{chunk.first_position} + i;
      line.token.is_prompt = line.token.position < chunk.sequence->prompt_tokens;
      const auto row =
          rows.choices.subspan(static_cast<size_t>((int64_t{chunk.row_begin} + i) * rows.chosen),
                               static_cast<size_t>(rows.chosen));
      by_weight_.assign(row.begin(), row.end());
      std::stable_sort(by_weight_.begin(), by_weight_.end(),
                       [](const RoutedTo& a, const RoutedTo& b) { return a.weight > b.weight; });
      line.slot = 0;
      for (const RoutedTo& choice : by_weight_) {
        line.expert = choice.expert;
        line.weight = choice.weight;
        append_line(waiting_, line);
        ++line.slot;
      }
    }
  }
  choices_ += std::ssize(rows.choices);
  if (std::ssize(waiting_) >= kWriteBytes) write();
}

void RoutingRecorder::write() {
  if (waiting_.empty() || is_over_) return;
  try {
    file_.write(waiting_.data(), std::ssize(waiting_), written_);
  } catch (const Error& error) {
    give_up(error);
    return;
  }
  written_ += std::ssize(waiting_);
  waiting_.clear();
  if (pass_begin_ <= written_) whole_ = pass_begin_;
}

void RoutingRecorder::give_up(const Error& error) {
  is_over_ = true;
  waiting_ = std::string();
  std::string left = "what was recorded before is there";
  try {
    file_.truncate(whole_);
  } catch (const Error& other) {
    left = other.text();
  }
  tell_(fmt::format("warning: no more routing is recorded: {}; {}", error.text(), left));
}

void RoutingRecorder::finish() {
  if (is_over_) return;
  write();
  if (is_over_) return;
  is_over_ = true;
  tell_(fmt::format("recorded {} choices of {} passes: {} (sluice routing reads it)", choices_,
                    pass_ + 1, file_.path()));
}

}  // namespace sluice::app
