#include "tools/plan_question.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/profile/profile_cache.h"
#include "tools/arguments.h"

namespace sluice::tools {

namespace {
policy::Profile machine_of(const PlanFlags& flags, const std::stop_token& stop) {
  if (!flags.hardware.empty() && flags.hardware != "this") return find_profile(flags.hardware);
  MeasureOptions options;
  options.quick = true;
  options.cancel = stop;
  options.progress = [](std::string_view what) {
    std::fprintf(stderr, "sluice: no profile of this machine yet: measuring %.*s\n",
                 static_cast<int>(what.size()), what.data());
  };
  return load_or_measure(options, [](std::string_view line) {
    std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(line.size()), line.data());
  });
}

policy::SearchConstraints constraints_of(const PlanFlags& flags, policy::Policy& start) {
  policy::SearchConstraints out;
  if (!flags.policy_file.empty() && !flags.percent.empty())
    throw Error(ErrorKind::kUser, "--policy and --percent both say where things go",
                "give one of them");
  if (!flags.policy_file.empty()) return out;  // nothing is searched for
  if (!flags.percent.empty()) {
    std::array<double, 6> percent{};
    std::copy_n(flags.percent.begin(), 6, percent.begin());
    policy::apply_percent(start, percent);
    out.weights = start.weights;
    out.kv = start.kv;
    out.activations = start.activations;
  }
  if (flags.micro_batch > 0) out.micro_batch_sequences = flags.micro_batch;
  if (flags.micro_batches > 0) out.micro_batches = flags.micro_batches;
  return out;
}

// The policy of --policy, with the block of the flags beside it.
std::optional<policy::Policy> given_policy(const PlanFlags& flags) {
  if (flags.policy_file.empty()) return std::nullopt;
  policy::Policy out =
      policy::parse_policy(read_text(flags.policy_file, kMostSettingsBytes), flags.policy_file);
  if (flags.micro_batch > 0) out.micro_batch_sequences = flags.micro_batch;
  if (flags.micro_batches > 0) out.micro_batches = flags.micro_batches;
  return out;
}
}  // namespace

void parse_length(const std::string& text, const char* flag, double& mean, int64_t& longest) {
  const size_t colon = text.find(':');
  const auto number = [&](const std::string& part) {
    char* end = nullptr;
    const double value = std::strtod(part.c_str(), &end);
    if (part.empty() || *end != '\0' || !(value >= 1 && value <= 1e7))
      throw Error(ErrorKind::kUser, fmt::format("{}: \"{}\" is no length", flag, text),
                  "write tokens, or mean:longest, as 512 or 300:1024");
    return value;
  };
  mean = number(text.substr(0, colon));
  longest = static_cast<int64_t>(
      std::llround(colon == std::string::npos ? mean : number(text.substr(colon + 1))));
  if (static_cast<double>(longest) < mean)
    throw Error(ErrorKind::kUser,
                fmt::format("{}: the longest of \"{}\" is below the mean", flag, text),
                "write mean:longest");
}

int64_t budget(const std::string& text, const char* flag) {
  if (text.empty()) return 0;
  const int64_t bytes = parse_bytes(text, flag);
  if (bytes <= 0)
    throw Error(ErrorKind::kUser, fmt::format("{} is {}", flag, text),
                "write a size such as 16GiB");
  return bytes;
}

policy::Profile hardware_of(const PlanFlags& flags, const std::stop_token& stop) {
  policy::Profile machine = machine_of(flags, stop);
  if (flags.device.empty()) return flags.gpu ? machine.with_device(*flags.gpu) : machine;
  machine.device.reset();
  machine.more_devices.clear();
  return machine;
}

policy::JobShape job_of(const PlanFlags& flags, int64_t sequences) {
  policy::JobShape job;
  parse_length(flags.prompt, "--prompt-len", job.prompt_tokens, job.max_prompt_tokens);
  parse_length(flags.fresh, "--gen-len", job.new_tokens, job.max_new_tokens);
  job.sequences = flags.sequences != 0 ? flags.sequences : sequences;
  return job;
}

void fill(const PlanFlags& flags, const std::stop_token& stop, Question& q) {
  q.model = app::planning_model(flags.model);
  if (!flags.weights.empty())
    q.model.set_weights(weight_format_argument(flags.weights, "--weights"));
  q.profile = hardware_of(flags, stop);
  app::PlanQuestion& asked = q.asked;
  asked.model = &q.model;
  if (flags.weights.empty()) q.packed = app::planning_checkpoint(flags.model);
  asked.packed = q.packed.get();
  asked.profile = &q.profile;
  if (!flags.device_memory.empty() && !q.profile.device)
    throw Error(ErrorKind::kUser, "--gpu-mem: this machine has no device",
                "leave it out, or choose a --hardware with one (sluice profile --list)");
  asked.device_bytes = budget(flags.device_memory, "--gpu-mem");
  asked.host_bytes = budget(flags.host_memory, "--cpu-mem");
  asked.disk_bytes = budget(flags.disk_memory, "--disk-mem");
  asked.has_file =
      (flags.hardware.empty() || flags.hardware == "this") && app::names_files(flags.model);
  asked.job = job_of(flags, 0);
  asked.constraints = constraints_of(flags, asked.start);
  q.policy = given_policy(flags);
  if (!flags.kv_dtype.empty()) asked.kv_dtype = parse_kv_format(flags.kv_dtype);
  asked.attention_sparsity = flags.attention_sparsity;
  if (flags.is_gpu_direct && !q.profile.device)
    throw Error(ErrorKind::kUser, "--gpu-direct: this machine has no device",
                "leave it out, or choose a --hardware with one (sluice profile --list)");
  asked.disk_reaches_device = flags.is_gpu_direct;
  asked.objective = flags.objective == "latency"   ? policy::Objective::kLatency
                    : flags.objective == "bounded" ? policy::Objective::kThroughputUnderLatency
                                                   : policy::Objective::kThroughput;
  asked.latency_bound_seconds = flags.latency_bound;
  if (flags.latency_bound < 0)
    throw Error(ErrorKind::kUser, "--latency-bound is negative", "write seconds");
  const int64_t block = flags.micro_batch * std::max<int64_t>(flags.micro_batches, 1);
  asked.job.sequences = flags.sequences != 0                             ? flags.sequences
                        : asked.objective == policy::Objective::kLatency ? 1
                        : block > 0                                      ? block
                        : q.policy ? q.policy->block_sequences()
                                   : 256;
}

void apply(const std::string& what, const std::string& value, Question& q) {
  const auto rate = [&](policy::Figure& figure) {
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    const std::string unit = end;
    const double scale = unit == "GB/s" ? 1e9 : unit == "MB/s" ? 1e6 : unit.empty() ? 1 : 0;
    if (!(number * scale > 0))
      throw Error(ErrorKind::kUser, fmt::format("--sweep {}: \"{}\" is no rate", what, value),
                  "write 2GB/s");
    figure.value = number * scale;
  };
  const auto need = [&](bool is_there, const char* part) {
    if (!is_there)
      throw Error(ErrorKind::kUser, fmt::format("--sweep {}: this machine has no {}", what, part),
                  "leave it out, or choose another --hardware (sluice profile --list)");
  };
  const auto need_device = [&] { need(q.profile.device.has_value(), "device"); };
  const auto length = [&](double& mean, int64_t& longest) {
    parse_length(value, "--sweep", mean, longest);
  };
  if (what == "gpu-mem") {
    need_device();
    q.asked.device_bytes = budget(value, "--sweep gpu-mem");
  } else if (what == "cpu-mem") {
    q.asked.host_bytes = budget(value, "--sweep cpu-mem");
  } else if (what == "disk-mem") {
    need(!q.profile.disks.empty(), "disk");
    q.asked.disk_bytes = budget(value, "--sweep disk-mem");
  } else if (what == "disk-read") {
    need(!q.profile.disks.empty(), "disk");
    for (policy::Disk& disk : q.profile.disks) {
      const double mixed = disk.mixed_read.value / disk.read.value;
      const double busy = disk.busy_read.value / disk.read.value;
      rate(disk.read);
      disk.mixed_read.value = disk.read.value * mixed;
      disk.busy_read.value = disk.read.value * busy;
    }
  } else if (what == "h2d") {
    need_device();
    rate(q.profile.link.to_device);
  } else if (what == "d2h") {
    need_device();
    rate(q.profile.link.to_host);
  } else if (what == "prompt-len") {
    length(q.asked.job.prompt_tokens, q.asked.job.max_prompt_tokens);
  } else if (what == "gen-len") {
    length(q.asked.job.new_tokens, q.asked.job.max_new_tokens);
  } else if (what == "sequences" || what == "batch") {
    double mean = 0;
    length(mean, q.asked.job.sequences);
  } else {
    throw Error(ErrorKind::kUser, fmt::format("--sweep {}: not something to sweep", what),
                "gpu-mem, cpu-mem, disk-mem, disk-read, h2d, d2h, prompt-len, gen-len, sequences");
  }
}

}  // namespace sluice::tools
