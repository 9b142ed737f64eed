// Lanes as a Chrome / Perfetto trace: one slice a task. A lane is a thread; what it has under way
// beside its first transfer is in others, "disk read 2", since slices of a thread can't overlap.
#include <fmt/format.h>

#include <algorithm>

#include "src/engine/engine.h"

namespace sluice {

namespace {
std::string task_label(const Task& task, const ModelShape& model) {
  const SublayerShape& sublayer = model.sublayers[static_cast<size_t>(task.sublayer)];
  std::string where;
  switch (sublayer.kind) {
    case SublayerKind::kEmbed: where = "embed"; break;
    case SublayerKind::kAttention:
      where = fmt::format("layer {} attention", sublayer.layer_index);
      break;
    case SublayerKind::kMlp: where = fmt::format("layer {} mlp", sublayer.layer_index); break;
    case SublayerKind::kHead: where = "head"; break;
  }
  return fmt::format("{} {}", task_kind_name(task.kind), where);
}

// By lane: when each of its rows is free again.
class LaneRows {
 public:
  explicit LaneRows(size_t lanes) : free_at_(lanes) {}
  /// The first row that is free from `start` on, taken until `end`.
  size_t take(size_t lane, double start, double end) {
    std::vector<double>& rows = free_at_[lane];
    const auto free =
        std::find_if(rows.begin(), rows.end(), [&](double at) { return at <= start; });
    const auto row = static_cast<size_t>(free - rows.begin());
    if (free == rows.end()) rows.push_back(0);
    rows[row] = end;
    return row;
  }
  size_t of(size_t lane) const { return free_at_[lane].size(); }
  size_t most() const {
    size_t most = 1;
    for (const auto& rows : free_at_) most = std::max(most, rows.size());
    return most;
  }

 private:
  std::vector<std::vector<double>> free_at_;
};

// Perfetto takes thread 0 for the main one, as it does the one that is called as the process.
constexpr size_t kFirstThread = 2;

std::string thread_name_json(size_t tid, const std::string& name) {
  return fmt::format(
      "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}},"
      "\n"
      "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_sort_index\",\"args\":{{\"sort_"
      "index\":{}"
      "}}}},\n",
      tid, name, tid, tid);
}
}  // namespace

std::string chrome_trace_json(const std::vector<TaskEvent>& events, const LaneTable& machine,
                              const ModelShape& model) {
  std::string out = "{\"traceEvents\":[\n";
  // In the order in which they began, so that rows fill from the first on.
  std::vector<const TaskEvent*> by_start;
  for (const TaskEvent& event : events) by_start.push_back(&event);
  std::stable_sort(by_start.begin(), by_start.end(), [](const TaskEvent* a, const TaskEvent* b) {
    return a->start_seconds < b->start_seconds;
  });
  LaneRows rows(machine.size());
  for (const TaskEvent* of : by_start) {
    const TaskEvent& event = *of;
    const Task& task = event.task;
    const auto* load = std::get_if<PartLoad>(&task.work);
    const std::string args =
        fmt::format("{{\"pass\":{},\"micro_batch\":{},\"part\":{},\"bytes\":{}}}", task.pass,
                    task.micro_batch, load ? load->part : 0, task.bytes);
    std::string label = task_label(task, model);
    const bool is_inplace = task.kind == TaskKind::kCompute && task.lane == Lane::kHostCompute &&
                            task.compute().step != ComputeStep::kHostAttention;
    if (is_inplace) label += ": rows in place";
    const double start = event.start_seconds * 1e6;
    const double end = event.end_seconds * 1e6;
    const auto lane = static_cast<size_t>(task.lane);
    const size_t row = rows.take(lane, start, end);
    out += fmt::format(
        "{{\"ph\":\"X\",\"cat\":\"{}\",\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.1f},\"dur\":{"
        ":.1f},"
        "\"args\":{}}},\n",
        machine[lane].name, kFirstThread + lane + row * machine.size(), label, start, end - start,
        args);
  }
  // The lanes above, what they have under way beside below.
  for (size_t row = 0; row < rows.most(); ++row)
    for (size_t lane = 0; lane < machine.size(); ++lane) {
      if (row > 0 && row >= rows.of(lane)) continue;
      const size_t tid = kFirstThread + lane + row * machine.size();
      out += thread_name_json(tid, row == 0 ? std::string(machine[lane].name)
                                            : fmt::format("{} {}", machine[lane].name, row + 1));
    }
  out += "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"sluice\"}}\n]}\n";
  return out;
}

}  // namespace sluice
