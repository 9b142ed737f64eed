#include "src/app/plan_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/checkpoint/gguf.h"
#include "kernels/linear.h"
#include "src/base/bytes.h"
#include "src/base/edit_distance.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/mutex.h"
#include "src/engine/packed_weights.h"
#include "src/engine/runners/attention_limits.h"
#include "src/engine/runners/sublayer_runner.h"
#include "src/engine/runners/workspace_areas.h"
#include "src/model/bound_model.h"
#include "src/model/builtin.h"
#include "src/model/family.h"
#include "src/model/planning_shapes.h"

namespace sluice::app {

namespace {
// Predictions further off than this are told, with the lane that did it.
constexpr double kWorthTelling = 0.2;

// "Llama-3.1-70B" as llama, 3.1 and 70b.
std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts(1);
  for (const char c : name)
    if (c == '-' || c == '_' || c == '/' || c == ' ')
      parts.emplace_back();
    else
      parts.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return parts;
}

// Those first that have most parts of it ("llama-70b": llama-2-70b before llama-7b), of these those
// that are written most alike.
[[noreturn]] void refuse_name(const std::string& name) {
  const std::vector<std::string> asked = parts_of(name);
  const auto distance = [&](const std::string& candidate) {
    const std::vector<std::string> has = parts_of(candidate);
    const auto missing = std::count_if(asked.begin(), asked.end(), [&](const std::string& part) {
      return std::find(has.begin(), has.end(), part) == has.end();
    });
    return std::pair(missing, edit_distance(name, candidate));
  };
  std::vector<std::string> names = builtin_model_names();
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return distance(a) < distance(b);
  });
  names.resize(std::min<size_t>(names.size(), 4));
  std::string near;
  for (const std::string& one : names) near += (near.empty() ? "" : ", ") + one;
  throw Error(ErrorKind::kUser,
              fmt::format("{}: neither a model's name nor a file or folder", name),
              "near names: " + near + "; sluice plan --list-models has all");
}

// What the machine's cores need to compute a micro-batch: the engine's own sizes, of 16-bit
// products where the weights allow them.
std::function<int64_t(int64_t)> cpu_workspace(const PlanQuestion& question,
                                              const policy::PlanInput& input) {
  const ModelShape& model = *question.model;
  const policy::Profile& profile = *question.profile;
  const bool is_bf16 = model.has_plain(DType::kBF16) || model.is_quantised();
  WorkspaceNeed need{};
  need.model = &model;
  need.compute.compute = is_bf16 ? kernels::Compute::kBF16 : kernels::Compute::kF32;
  const int64_t longest = input.workload.max_total_tokens;
  need.attention = attention_shapes(model, input.kv_dtype,
                                    policy::page_tokens_of(question.start, input.kv_dtype, longest),
                                    question.attention_sparsity, longest);
  need.threads = std::max(profile.host.threads, 1);
  // A search asks some thousand times for the same few sizes of a micro-batch.
  struct Known {
    Mutex mutex;
    std::map<int64_t, int64_t> bytes SLUICE_GUARDED_BY(mutex);  // by tokens
  };
  return [need, known = std::make_shared<Known>()](int64_t tokens) {
    const MutexLock lock(known->mutex);
    const auto [place, is_new] = known->bytes.try_emplace(tokens, 0);
    if (is_new) {
      WorkspaceNeed of = need;
      of.tokens = tokens;
      place->second = workspace_bytes(of);
    }
    return place->second;
  };
}

// Whether the model has a learned row for each position, and none beyond them.
bool learns_positions(const ModelShape& model) {
  constexpr int64_t kUnused = 8;  // OPT's first two rows are no position's
  const std::vector<WeightShape>& tables = model.sublayers.front().weights;
  return std::any_of(tables.begin(), tables.end(), [&](const WeightShape& weight) {
    return weight.kind == WeightKind::kTable && weight.rows != model.vocab_size &&
           weight.rows >= model.max_positions && weight.rows <= model.max_positions + kUnused;
  });
}

void refuse_what_has_no_positions(const ModelShape& model, int64_t longest) {
  if (longest > model.max_positions && learns_positions(model))
    throw Error(ErrorKind::kUser,
                fmt::format("the model has {} positions, and a sequence of the job {} tokens",
                            model.max_positions, longest),
                "lower `prompt_tokens` or `new_tokens`");
}

// What the engine would refuse on that machine's device. An emulated one's kernels are the CPU's.
void refuse_what_does_not_run(const PlanQuestion& question, const policy::PlanInput& input) {
  const ModelShape& model = *question.model;
  require_kv(model, input.kv_dtype);
  const auto& device = question.profile->device;
  if (!device || device->threads > 0) return;
  const int64_t longest = input.workload.max_total_tokens;
  const int64_t page = policy::page_tokens_of(question.start, input.kv_dtype, longest);
  for (const kernels::AttentionShape& shape :
       attention_shapes(model, input.kv_dtype, page, question.attention_sparsity, longest))
    if (const auto refusal = gpu_refusal(shape))
      throw Error(ErrorKind::kUser, fmt::format("{}: {}", device->name, refusal->what),
                  refusal->mend);
}

void set_workspace(const PlanQuestion& question, policy::PlanInput& input) {
  const auto on_cpu = cpu_workspace(question, input);
  const auto& device = question.profile->device;
  input.workspace_bytes = on_cpu;
  if (!device || device->threads > 0) return;
  input.workspace_bytes = [model = question.model](int64_t tokens) {
    return gpu_workspace_estimate(*model, tokens);
  };
  input.host_workspace_bytes = on_cpu;
}
// The disk holds the model's file first; what is offloaded has the rest. A model that is larger
// than it can be read from nowhere: then all has to be in memory.
void set_disk(const PlanQuestion& question, policy::PlanInput& input) {
  const policy::Profile& profile = *question.profile;
  input.has_disk = !profile.disks.empty();
  if (!input.has_disk && question.disk_bytes > 0)
    throw Error(ErrorKind::kUser, "`disk_budget_bytes`: this machine has no disk", "leave it out");
  input.disk_budget_bytes = question.disk_bytes;
  const int64_t capacity = profile.disk_bytes;
  if (!input.has_disk || capacity <= 0) return;
  const int64_t file = question.has_file ? 0 : input.model->weight_bytes();
  if (file < capacity) {
    const int64_t left = capacity - file;
    input.disk_budget_bytes = question.disk_bytes > 0 ? std::min(question.disk_bytes, left) : left;
    return;
  }
  if (file > input.device_budget_bytes + input.memory_budget_bytes)
    throw Error(
        ErrorKind::kResource,
        fmt::format("{} of weights fit neither the disk, which has {}, nor memory, which has {}",
                    format_bytes(file), format_bytes(capacity),
                    format_bytes(input.device_budget_bytes + input.memory_budget_bytes)),
        "choose a smaller format of the weights, or a machine with a larger disk");
  input.has_disk = false;
  input.disk_budget_bytes = 0;
}
}  // namespace

int64_t gpu_workspace_estimate(const ModelShape& model, int64_t tokens) {
  int64_t widest = 0;
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kMatrix) widest = std::max(widest, weight.cols);
  return tokens * (model.workspace_columns * 4 + widest * 2) +
         std::min(tokens, kLogitRows) * model.vocab_size * 4 + 64 * kMiB;
}

ModelShape planning_model(const std::string& name_or_path) {
  if (auto shape = planning_shape(name_or_path)) return *shape;
  const PathKind kind = path_kind(name_or_path);
  if (kind == PathKind::kFolder) return BoundModel::open(name_or_path).shape();
  if (kind == PathKind::kMissing) refuse_name(name_or_path);
  if (io::is_gguf(name_or_path)) return BoundModel::open(name_or_path).shape();
  const std::string text = read_file(name_or_path, kMostSettingsBytes, Streams::kAllow);
  return make_family_model(ModelConfig(text, name_or_path))->shape();
}

bool names_files(const std::string& name_or_path) {
  return !planning_shape(name_or_path) &&
         (path_kind(name_or_path) == PathKind::kFolder || io::is_gguf(name_or_path));
}

std::string context_note(const policy::SearchRequest& request) {
  const int64_t longest = request.input.workload.max_total_tokens;
  const int64_t most = request.input.model->max_positions;
  if (longest <= most) return {};
  return fmt::format(
      "the model was made for {} positions, and a sequence of the job has {}: beyond them answers "
      "may mean nothing (models are stretched with `rope_scaling` when they run)",
      most, longest);
}

std::shared_ptr<const BoundModel> planning_checkpoint(const std::string& name_or_path) {
  if (!names_files(name_or_path)) return nullptr;
  auto model = std::make_shared<const BoundModel>(BoundModel::open(name_or_path));
  return model->foreign_method().empty() ? nullptr : model;
}

policy::SearchRequest plan_request(const PlanQuestion& question) {
  const ModelShape& model = *question.model;
  const policy::Profile& profile = *question.profile;
  policy::SearchRequest request;
  const auto positive = [](double value, const char* parameter) {
    if (!(value >= 1 && value <= 1e9))
      throw Error(ErrorKind::kUser, fmt::format("{} is {}", parameter, value), "write 1 or more");
  };
  positive(question.job.prompt_tokens, "`prompt_tokens`");
  positive(question.job.new_tokens, "`new_tokens`");
  positive(static_cast<double>(question.job.sequences), "`sequences`");
  policy::PlanInput& input = request.input;
  input.model = question.model;
  input.device_budget_bytes =
      profile.device ? (question.device_bytes > 0 ? question.device_bytes : profile.device_bytes)
                     : 0;
  input.memory_budget_bytes = question.host_bytes > 0 ? question.host_bytes : profile.host_bytes;
  set_disk(question, input);
  input.program_bytes = 192 * kMiB;
  input.kv_dtype = question.kv_dtype.value_or(model.weight_dtype);
  input.attention_sparsity = question.attention_sparsity;
  input.disk_reaches_device = question.disk_reaches_device;
  input.row_granule = kernels::kRowGranule;
  input.load_staging_bytes = 16 * kMiB;
  request.job = question.job;
  const auto longest = [](int64_t most, double mean) {
    return std::max(most, static_cast<int64_t>(std::llround(mean)));
  };
  const int64_t prompt = longest(question.job.max_prompt_tokens, question.job.prompt_tokens);
  const int64_t fresh = longest(question.job.max_new_tokens, question.job.new_tokens);
  input.workload.sequences = question.job.sequences;
  input.workload.max_prompt_tokens = prompt;
  input.workload.max_total_tokens = prompt + fresh;
  input.workload.total_tokens =
      static_cast<int64_t>(static_cast<double>(question.job.sequences) *
                           (question.job.prompt_tokens + question.job.new_tokens));
  refuse_what_has_no_positions(model, input.workload.max_total_tokens);
  refuse_what_does_not_run(question, input);
  if (question.packed)
    set_packed_weights(*question.packed, std::max(profile.host.threads, 1), input);
  set_workspace(question, input);
  request.profile = question.profile;
  request.objective = question.objective;
  request.latency_bound_seconds = question.latency_bound_seconds;
  request.constraints = question.constraints;
  request.start = question.start;
  request.start.page_tokens =
      policy::page_tokens_of(question.start, input.kv_dtype, input.workload.max_total_tokens);
  return request;
}

policy::JobShape job_of(const policy::Workload& workload) {
  policy::JobShape job;
  job.sequences = std::max<int64_t>(workload.sequences, 1);
  job.max_prompt_tokens = std::max<int64_t>(workload.max_prompt_tokens, 1);
  const int64_t longest = std::max(workload.max_total_tokens, job.max_prompt_tokens + 1);
  job.max_new_tokens = longest - job.max_prompt_tokens;
  const double mean = workload.total_tokens > 0 ? static_cast<double>(workload.total_tokens) /
                                                      static_cast<double>(job.sequences)
                                                : static_cast<double>(longest);
  const double share =
      workload.prompt_tokens > 0 && workload.total_tokens > 0
          ? static_cast<double>(workload.prompt_tokens) / static_cast<double>(workload.total_tokens)
          : static_cast<double>(job.max_prompt_tokens) / static_cast<double>(longest);
  job.prompt_tokens = std::max(mean * share, 1.0);
  job.new_tokens = std::max(mean * (1 - share), 1.0);
  return job;
}

Comparison compare(const policy::Prediction& prediction, const EngineStats& stats) {
  Comparison out;
  out.measured_seconds = stats.prefill_seconds + stats.decode_seconds;
  // What the prediction says for as many tokens as there were.
  const double blocks = prediction.new_tokens > 0
                            ? static_cast<double>(stats.decode_tokens) / prediction.new_tokens
                            : 0;
  out.predicted_seconds = blocks * prediction.seconds();
  double most = 0;
  for (const auto& [lane, lane_stats] : stats.lanes) {
    const double predicted = blocks * prediction.lane_seconds(lane);
    const double difference = std::abs(lane_stats.busy_seconds - predicted);
    const bool is_compute = stats.machine.at(static_cast<size_t>(lane)).computes();
    if (is_compute && predicted > 0 && lane_stats.busy_seconds > 0)
      out.compute_factors[lane] = lane_stats.busy_seconds / predicted;
    if (!is_compute && lane_stats.busy_seconds > 0.5)
      out.transfer_rates[lane] = static_cast<double>(lane_stats.bytes) / lane_stats.busy_seconds;
    if (difference > most) {
      most = difference;
      out.blamed = lane;
    }
  }
  if (std::abs(out.measured_seconds - out.predicted_seconds) <=
      kWorthTelling * out.predicted_seconds)
    out.blamed.reset();
  return out;
}

nlohmann::ordered_json comparison_json(const policy::Prediction& prediction,
                                       const EngineStats& stats) {
  const Comparison result = compare(prediction, stats);
  const double blocks = prediction.new_tokens > 0
                            ? static_cast<double>(stats.decode_tokens) / prediction.new_tokens
                            : 0;
  auto lanes = nlohmann::ordered_json::object();
  for (size_t i = 0; i < prediction.prefill_lanes.size(); ++i) {
    const Lane lane(i);
    if (prediction.lane_seconds(lane) > 0)
      lanes[lane_name(named_lanes(), lane)] = blocks * prediction.lane_seconds(lane);
  }
  return {{"predicted_s", result.predicted_seconds},
          {"predicted_prefill_s", blocks * prediction.prefill_seconds},
          {"predicted_decode_s", blocks * prediction.decode_seconds},
          {"measured_s", result.measured_seconds},
          {"tokens_per_s", result.predicted_seconds > 0
                               ? static_cast<double>(stats.decode_tokens) / result.predicted_seconds
                               : 0},
          {"lanes", lanes}};
}

std::string format_three_digits(double value) {
  if (value >= 999.5) return fmt::format("{:.0f}", value);
  if (value >= 0.001 || value <= 0) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value, 2 - static_cast<int>(std::floor(std::log10(value))));
}

std::string comparison_text(const policy::Prediction& prediction, const EngineStats& stats) {
  const Comparison result = compare(prediction, stats);
  if (result.predicted_seconds <= 0 || result.measured_seconds <= 0) return {};
  const auto tokens = static_cast<double>(stats.decode_tokens);
  std::string text = fmt::format("predicted {} tokens/s, measured {} ({:+.0f}%)",
                                 format_three_digits(tokens / result.predicted_seconds),
                                 format_three_digits(tokens / result.measured_seconds),
                                 100 * (result.predicted_seconds / result.measured_seconds - 1));
  if (!result.blamed) return text;
  const double blocks = tokens / prediction.new_tokens;
  for (const auto& [lane, lane_stats] : stats.lanes)
    if (lane == *result.blamed)
      text += fmt::format("; the lane furthest off is {}: {} predicted, {} measured",
                          lane_name(stats.machine, lane),
                          format_seconds(blocks * prediction.lane_seconds(lane)),
                          format_seconds(lane_stats.busy_seconds));
  return text;
}

}  // namespace sluice::app
