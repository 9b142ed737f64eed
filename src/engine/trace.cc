// Lanes as a Chrome / Perfetto trace: one thread a lane, one slice a task.
#include <fmt/format.h>

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
}  // namespace

std::string chrome_trace_json(const std::vector<TaskEvent>& events, const LaneTable& machine,
                              const ModelShape& model) {
  std::string out = "{\"traceEvents\":[\n";
  for (size_t lane = 0; lane < machine.size(); ++lane)
    out += fmt::format(
        "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}"
        "},\n",
        lane, machine[lane].name);
  for (const TaskEvent& event : events) {
    const Task& task = event.task;
    // Transfers of one lane overlap each other: asynchronous slices ("b"/"e"), compute plain ones
    // ("X").
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
    const int lane = static_cast<int>(task.lane);
    if (task.kind == TaskKind::kCompute) {
      out += fmt::format(
          "{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.1f},\"dur\":{:.1f},"
          "\"args\":{}}},\n",
          lane, label, start, end - start, args);
      continue;
    }
    out += fmt::format(
        "{{\"ph\":\"b\",\"cat\":\"{}\",\"id\":{},\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.1f}"
        ",\"args\":{}}},\n",
        lane_name(machine, task.lane), task.id, lane, label, start, args);
    out += fmt::format(
        "{{\"ph\":\"e\",\"cat\":\"{}\",\"id\":{},\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.1f}"
        "}},\n",
        lane_name(machine, task.lane), task.id, lane, label, end);
  }
  out += "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"sluice\"}}\n]}\n";
  return out;
}

}  // namespace sluice
