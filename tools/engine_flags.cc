#include "tools/engine_flags.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "kernels/cpu/isa.h"
#include "src/app/gpu.h"
#include "src/app/model_tokenizer.h"
#include "src/app/named_adapters.h"
#include "src/app/plan_request.h"
#include "src/app/report.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/profile/profile_cache.h"
#include "tools/arguments.h"
#include "tools/chat_options.h"
#include "tools/flag_words.h"
#include "tools/model_argument.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
void add_budgets(CLI::App& parser, EngineFlags& flags) {
  const char* budgets = "Budgets";
  parser
      .add_option("--cpu-mem,--cpu-memory", flags.memory,
                  "memory for weights, KV and buffers, as 4GiB (default: what is free)")
      ->envname("SLUICE_CPU_MEM")
      ->group(budgets);
  parser
      .add_option("--disk-mem,--disk-memory", flags.disk, "disk for offloaded KV and activations")
      ->envname("SLUICE_DISK_MEM")
      ->group(budgets);
  parser
      .add_option("--offload-dir", flags.offload_dir,
                  "folder for them (default: the temporary folder)")
      ->envname("SLUICE_OFFLOAD_DIR")
      ->group(budgets);
  parser
      .add_option("-c,--ctx-size,--max-model-len", flags.context,
                  "longest sequence, prompt and output")
      ->group(budgets);
  parser
      .add_option(
          "--device", flags.device,
          "cpu (default), cuda, or emulated:mem=4GiB,h2d=12GB/s,d2h=12GB/s,latency=10us (three "
          "tiers without a GPU: docs/emulated-device.md)")
      ->envname("SLUICE_DEVICE")
      ->group(budgets);
  parser.add_option("--gpu", flags.gpu, "compute on this GPU, from 0: short for --device cuda")
      ->check(CLI::NonNegativeNumber)
      ->group(budgets);
  parser
      .add_option("--gpu-mem,--gpu-memory", flags.device_memory,
                  "device memory for weights, KV and buffers (needs a device)")
      ->envname("SLUICE_GPU_MEM")
      ->group(budgets);
  parser
      .add_flag("--no-cuda-graphs", flags.has_no_cuda_graphs,
                "launch every kernel of a resident model by itself instead of decode passes as a "
                "whole, for comparison")
      ->group(budgets);
  parser
      .add_flag("--gpu-direct", flags.is_gpu_direct,
                "read weights from disk straight into the GPU's memory (NVIDIA's GPUDirect "
                "Storage, libcufile)")
      ->group(budgets);
}

void add_policy(CLI::App& parser, EngineFlags& flags) {
  const char* policies = "Policy (default: searched for on the machine's profile)";
  parser
      .add_option("--hardware", flags.hardware,
                  "profile to search on: a file (sluice profile -o), this (default), or none: fill "
                  "the budget without searching")
      ->envname("SLUICE_HARDWARE")
      ->group(policies);
  parser
      .add_flag(
          "--recalibrate", flags.recalibrate,
          "take what this run measures into the machine's kept profile as it is (runs teach it by "
          "and by: what was faster, and in quiet runs what was slower)")
      ->group(policies);
  parser.add_option("--policy", flags.policy_file, "policy as JSON (docs/formats/policy.md)")
      ->group(policies);
  parser
      .add_option("--percent", flags.percent,
                  "weights, KV, activations: device and host share each, the rest on disk")
      ->expected(6)
      ->group(policies);
  parser
      .add_option("--gpu-batch-size,--micro-batch", flags.micro_batch_sequences,
                  "sequences of a micro-batch")
      ->group(policies);
  parser
      .add_option("--num-gpu-batches,--micro-batches", flags.micro_batches,
                  "micro-batches of a block")
      ->group(policies);
  parser
      .add_option("--micro-batch-tokens", flags.micro_batch_tokens,
                  "tokens of a micro-batch, at most")
      ->group(policies);
  parser
      .add_option("--page-tokens", flags.page_tokens,
                  "tokens of a KV page (default: 16, of quantised KV 64)")
      ->group(policies);
}

void add_positions(CLI::App& parser, PositionWishes& positions) {
  const char* group = "Positions";
  parser
      .add_option("--rope-scaling", positions.rope_scaling,
                  "yarn or linear (with --rope-factor), none, or an object as config.json has it "
                  "under \"rope_scaling\"")
      ->group(group);
  parser
      .add_option("--rope-factor,--rope-scale", positions.rope_factor,
                  "by how much longer sequences become than the model was trained on")
      ->group(group);
  parser
      .add_option("--rope-theta,--rope-freq-base", positions.rope_theta,
                  "base of the rotary frequencies")
      ->group(group);
  parser
      .add_option("--rope-original,--yarn-orig-ctx", positions.rope_original,
                  "positions that the model was trained on (default: as its config.json says)")
      ->group(group);
}

void add_machine(CLI::App& parser, EngineFlags& flags) {
  const char* machine = "Machine";
  parser.add_option("-t,--threads", flags.threads, "compute threads (default: all)")
      ->envname("SLUICE_THREADS")
      ->group(machine);
  parser.add_option("--compute", flags.compute, "auto, f32 or bf16")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->group(machine);
  parser
      .add_flag("--batch-invariant", flags.batch_invariant,
                "a sequence's logits are the same bits whoever runs beside it; on the CPU, slower "
                "(docs/batch-invariance.md)")
      ->group(machine);
  parser
      .add_option("--activations", flags.activations,
                  "what quantised weights are multiplied with: 16 (bits), int8 (int4 and int8 "
                  "weights) or fp8 (fp8 weights)")
      ->check(CLI::IsMember({"16", "int8", "fp8"}))
      ->group(machine);
  parser
      .add_option("--outlier-threshold", flags.outlier_threshold,
                  "LLM.int8(): with int8 activations, columns with a larger value are multiplied "
                  "apart (6 in the paper; 0: none)")
      ->check(CLI::Range(0.0, 1e6))
      ->group(machine);
  parser
      .add_option("--attn-sparsity", flags.attention_sparsity,
                  "sparse attention: each head reads the values of this share of its positions, "
                  "those with the highest scores (0.1; default 1: all)")
      ->group(machine);
  add_kv_dtype_option(parser, flags.kv_dtype)->group(machine);
  parser
      .add_option("--kv-recent", flags.kv_recent,
                  "with quantised KV: newest tokens of each sequence that stay in 16 bits")
      ->group(machine);
  parser.add_option("--io", flags.io, "auto, uring, pread or buffered")
      ->check(CLI::IsMember({"auto", "uring", "pread", "buffered"}))
      ->group(machine);
  parser
      .add_option("--cpu-isa", flags.isa,
                  "generic, avx2, avx512, avx512_bf16, amx, neon or neon_bf16")
      ->group(machine);
  parser.add_option("--trace", flags.trace, "write a Chrome/Perfetto trace of the lanes")
      ->group(machine);
}
}  // namespace

void EngineFlags::add_to(CLI::App& parser) {
  add_model_option(parser, model,
                   "model folder, packed store, or a name that `sluice models` lists")
      ->required();
  add_pretokenizer_option(parser, pretokenizer);
  parser
      .add_option("--lora", loras,
                  "NAME=DIR (or DIR): a PEFT adapter kept beside the model (may be given again); "
                  "docs/lora.md")
      ->expected(1)
      ->take_all();
  if (adapter_use == AdapterUse::kOne)
    parser.add_option("--adapter", adapter, "of several given with --lora, the one to use");
  add_budgets(parser, *this);
  add_positions(parser, positions);
  add_policy(parser, *this);
  add_machine(parser, *this);
  parser.add_flag("--dry-run", dry_run, "print the plan, read no weights");
  parser.add_flag("--json", json, "one JSON object on standard output");
  parser.add_flag("-v,--verbose", verbose, "print the plan's table and the log");
  for (const char* name : {"--n-gpu-layers", "--gpu-layers", "--gpu-memory-utilization",
                           "--n-cpu-moe", "--override-tensor", "--load-mode", "--numa"})
    parser
        .add_option_function<std::string>(
            name, [this, name](const std::string&) { refused_.emplace_back(name); }, "")
        ->group("");
  parser
      .add_flag_callback(
          "--cpu-moe", [this] { refused_.emplace_back("--cpu-moe"); }, "")
      ->group("");
}

void EngineFlags::add_recording_to(CLI::App& parser) {
  parser
      .add_option("--record-routing", record_routing,
                  "of a mixture of experts: write which experts each token goes to, for sluice "
                  "routing (docs/mixtures.md)")
      ->group("Machine");
}

namespace {
policy::Policy base_policy(const EngineFlags& flags) {
  policy::Policy policy;
  if (!flags.policy_file.empty())
    policy =
        policy::parse_policy(read_text(flags.policy_file, kMostSettingsBytes), flags.policy_file);
  if (!flags.percent.empty()) {
    std::array<double, 6> percent{};
    std::copy_n(flags.percent.begin(), 6, percent.begin());
    try {
      policy::apply_percent(policy, percent);
    } catch (const Error& error) {
      throw error.with_context("--percent (six numbers from 0 to 100)");
    }
    const bool on_cpu = (flags.device.empty() || flags.device == "cpu") && flags.gpu < 0;
    if (on_cpu && percent[1] + percent[3] + percent[5] > 0)
      std::fprintf(stderr,
                   "sluice: no GPU in use: device and host shares are the same memory here\n");
  }
  const auto take = [](int64_t& field, int64_t flag) {
    if (flag != 0) field = flag;
  };
  take(policy.micro_batch_sequences, flags.micro_batch_sequences);
  take(policy.micro_batches, flags.micro_batches);
  take(policy.micro_batch_tokens, flags.micro_batch_tokens);
  take(policy.page_tokens, flags.page_tokens);
  policy::validate(policy);
  return policy;
}
}  // namespace

namespace {
void choose_device(const EngineFlags& flags, EngineOptions& out) {
  const bool is_cuda = flags.device == "cuda" || (flags.device.empty() && flags.gpu >= 0);
  if (flags.gpu >= 0 && !is_cuda)
    throw Error(
        ErrorKind::kUser,
        fmt::format("--gpu {} and --device {} contradict each other", flags.gpu, flags.device),
        "leave one of them out");
  const int64_t bytes =
      flags.device_memory.empty() ? 0 : parse_bytes(flags.device_memory, "--gpu-mem");
  if (is_cuda) {
    out.backend = app::open_gpu(std::max(flags.gpu, 0), bytes,
                                {!flags.has_no_cuda_graphs, flags.is_gpu_direct, tell});
    return;
  }
  if (flags.is_gpu_direct)
    throw Error(ErrorKind::kUser, "--gpu-direct has no effect without --device cuda",
                "leave it out");
  if (flags.has_no_cuda_graphs)
    throw Error(ErrorKind::kUser, "--no-cuda-graphs has no effect without --device cuda",
                "leave it out");
  if (!flags.device.empty() && flags.device != "cpu")
    out.device = parse_emulated_spec(flags.device);
  if (bytes == 0) return;
  if (!out.device)
    throw Error(ErrorKind::kUser, "--gpu-mem has no effect: this run computes on the CPU",
                "leave it out (--cpu-mem sets the budget), or give a --device");
  out.device->memory_bytes = bytes;
}
}  // namespace

EngineOptions EngineFlags::options(const policy::Workload& workload) const {
  if (!refused_.empty())
    throw Error(ErrorKind::kUser,
                fmt::format("{} has no effect: budgets decide what goes where", refused_.front()),
                "leave it out; --gpu-mem and --cpu-mem set the budgets and the policy follows");
  if (!policy_file.empty() && !percent.empty())
    throw Error(ErrorKind::kUser, "--policy and --percent both say where things go",
                "give one of them");
  if (!isa.empty()) {
    const auto parsed = kernels::parse_isa(isa);
    if (!parsed)
      throw Error(ErrorKind::kUser, fmt::format("--cpu-isa: \"{}\" is unknown", isa),
                  "write generic, avx2, avx512, avx512_bf16, amx, neon or neon_bf16");
    kernels::force_isa(*parsed);
  }
  EngineOptions out;
  choose_device(*this, out);
  if (!memory.empty()) out.memory_budget_bytes = parse_bytes(memory, "--cpu-mem");
  if (!disk.empty()) out.disk_budget_bytes = parse_bytes(disk, "--disk-mem");
  if (context < 0 || threads < 0)
    throw Error(ErrorKind::kUser, "--ctx-size and --threads can't be negative",
                "leave them out for the default");
  out.offload_dir = offload_dir;
  out.workload = workload;
  out.context_tokens = context;
  out.threads = threads;
  out.compute = compute == "f32"    ? ComputeChoice::kF32
                : compute == "bf16" ? ComputeChoice::kBF16
                                    : ComputeChoice::kAuto;
  out.batch_invariant = batch_invariant;
  out.activations = activations == "int8"  ? kernels::ActivationFormat::kInt8
                    : activations == "fp8" ? kernels::ActivationFormat::kFp8
                                           : kernels::ActivationFormat::k16Bit;
  out.outlier_threshold = static_cast<float>(outlier_threshold);
  out.attention_sparsity = static_cast<float>(attention_sparsity);
  if (!kv_dtype.empty()) out.kv_dtype = parse_kv_format(kv_dtype);
  out.kv_recent_tokens = kv_recent;
  out.io_mode = io == "uring"   ? io::IoMode::kUring
                : io == "pread" ? io::IoMode::kPread
                                : io::IoMode::kAuto;
  out.direct_io = io != "buffered";
  out.keep_trace = !trace.empty();
  const policy::Policy policy = base_policy(*this);
  const bool by_hand = !policy_file.empty() || !percent.empty();
  if (by_hand) {
    out.policy = policy;
  } else {
    out.start_policy = policy;
    // A block given by hand bounds how many sequences run together; the default fills the rest.
    if (micro_batch_sequences > 0 || micro_batches > 0)
      out.workload.sequences = std::min(out.workload.sequences, policy.block_sequences());
  }
  out.log = [verbose = verbose](std::string_view line) {
    if (verbose) std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(line.size()), line.data());
  };
  out.warn = tell;
  return out;
}

namespace {
app::MachineOptions machine_options(const EngineFlags& flags, std::stop_token cancel) {
  app::MachineOptions out;
  out.offload_dir = flags.offload_dir;
  out.threads = flags.threads;
  out.measure_backend = app::measure_with_gpu;
  out.tell = tell;
  out.cancel = std::move(cancel);
  if (flags.hardware == "none") {
    out.source = app::ProfileSource::kNone;
  } else if (flags.hardware == "this") {
    out.source = app::ProfileSource::kThis;
  } else if (!flags.hardware.empty()) {
    out.source = app::ProfileSource::kGiven;
    out.profile_name = flags.hardware;
    out.profile = find_profile(flags.hardware);
  }
  return out;
}

void print_plan(const EngineFlags& flags, const Engine& engine) {
  const policy::Plan& plan = engine.plan();
  if (!flags.json) {
    std::printf("%s\n%s", policy::describe(plan.policy, plan.has_device).c_str(),
                app::engine_plan_table(engine).c_str());
    return;
  }
  const nlohmann::ordered_json json{
      {"policy", nlohmann::ordered_json::parse(policy::policy_to_json(plan.policy))},
      {"planned_bytes", plan.device_bytes() + plan.memory_bytes()},
      {"budget_bytes", engine.stats().memory_budget_bytes},
      {"device_budget_bytes", engine.stats().device_budget_bytes},
      {"streamed_bytes_per_pass", plan.streamed_weight_bytes}};
  print_json(json);
}

void tell_expected(const app::FoundPlan& found) {
  if (!found.prediction) return;
  std::string searched;
  if (found.candidates > 0)
    searched = fmt::format("; {} policies looked at in {}", found.candidates,
                           format_seconds(found.search_seconds));
  tell(fmt::format("expected {} tokens/s{}",
                   app::format_three_digits(found.prediction->tokens_per_second()), searched));
}
}  // namespace

std::shared_ptr<const BoundModel> open_model(const EngineFlags& flags, int64_t sequence_tokens) {
  PositionWishes positions = flags.positions;
  positions.context_tokens = flags.context;
  positions.sequence_tokens = sequence_tokens;
  return app::open_model(flags.model, positions);
}

OpenedEngine open_engine(const EngineFlags& flags, const policy::Workload& workload,
                         std::stop_token cancel,
                         const std::function<void(EngineOptions&)>& adjust) {
  return open_engine(flags, open_model(flags, workload.max_total_tokens), workload,
                     std::move(cancel), adjust);
}

namespace {
// The one that all requests have; null: none.
AdapterPtr chosen_adapter(const EngineFlags& flags, Engine& engine) {
  if (flags.adapter_use != AdapterUse::kOne) return nullptr;
  const std::vector<AdapterPtr> all = engine.adapters().list();
  if (flags.adapter.empty() && all.size() <= 1) return all.empty() ? nullptr : all.front();
  std::string names;
  for (const AdapterPtr& one : all) names += (names.empty() ? "" : ", ") + one->name;
  if (flags.adapter.empty())
    throw Error(ErrorKind::kUser,
                fmt::format("several adapters ({}), and nothing says which", names),
                "choose one with --adapter NAME");
  AdapterPtr found = engine.adapters().find(flags.adapter);
  if (!found)
    throw Error(ErrorKind::kUser, fmt::format("--adapter {}: there is none", flags.adapter),
                all.empty() ? "give it with --lora NAME=DIR" : "there are: " + names);
  return found;
}
}  // namespace

std::string adapters_key(const std::vector<std::string>& loras) {
  std::string key;
  for (const app::NamedAdapter& one : app::open_adapters(loras))
    key += fmt::format("|{}={:016x}", one.name, one.adapter.fingerprint());
  return key;
}

AdapterPtr adapter_in_turn(Engine& engine, uint64_t number) {
  const std::vector<AdapterPtr> all = engine.adapters().list();
  return all.empty() ? nullptr : all[number % all.size()];
}

OpenedEngine open_engine(const EngineFlags& flags, std::shared_ptr<const BoundModel> model,
                         const policy::Workload& workload, std::stop_token cancel,
                         const std::function<void(EngineOptions&)>& adjust,
                         const std::function<void(const policy::Plan&)>& planned) {
  EngineOptions options = flags.options(workload);
  if (options.backend) model = app::for_gpu(std::move(model), options.activations);
  const std::vector<app::NamedAdapter> adapters =
      app::open_adapters(flags.loras, model_name(flags.model));
  options.adapters = app::room_for(*model, adapters);
  auto bar = std::make_shared<Progress>("loading weights");
  options.load_progress = [bar](const LoadProgress& progress) {
    if (progress.done_bytes >= progress.total_bytes) return bar->end();
    bar->update(progress.done_bytes, progress.total_bytes,
                fmt::format("{} of {}", format_bytes(progress.done_bytes),
                            format_bytes(progress.total_bytes)),
                progress.seconds > 0
                    ? format_rate(static_cast<double>(progress.done_bytes) / progress.seconds)
                    : "");
  };
  if (adjust) adjust(options);
  options.experts_file = experts_cache_path(model->path()).string();
  OpenedEngine out;
  if (!flags.record_routing.empty()) {
    app::require_experts(*model, "--record-routing");
    if (!flags.dry_run) {
      out.recorder = std::make_shared<app::RoutingRecorder>(flags.record_routing, *model, tell);
      options.observe_choices = [recorder = out.recorder](const RoutedRows& rows) {
        recorder->take(rows);
      };
    }
  }
  EngineInput input = plan_input(*model, options);
  app::PlanWishes wishes;
  wishes.prefers_memory = flags.prefers_memory;
  if (flags.micro_batch_tokens > 0)
    wishes.constraints.micro_batch_tokens = flags.micro_batch_tokens;
  {
    const Waiting waiting("planning");
    out.found =
        app::find_plan(*model, options, input, machine_options(flags, std::move(cancel)), wishes);
  }
  if (planned) planned(out.found.plan);
  out.engine =
      std::make_unique<Engine>(model, std::move(options), std::move(input), out.found.plan);
  Engine& engine = *out.engine;
  app::load_adapters(engine, adapters);
  engine.set_default_adapter(chosen_adapter(flags, engine));
  if (flags.dry_run) {
    print_plan(flags, engine);
    return {};
  }
  tell(app::plan_sentence(engine));
  tell_expected(out.found);
  if (flags.verbose) {
    std::fprintf(stderr, "%s", app::engine_plan_table(engine).c_str());
    tell(engine.compute_name() + "; " + engine.io_name());
  }
  for (const std::string& note : model->notes()) tell("note: " + in_flags(note));
  const std::string warning = app::fit_warning(engine);
  if (!warning.empty()) tell("warning: " + warning);
  if (out.found.kept) out.found.kept->begin();
  return out;
}

void finish_run(const EngineFlags& flags, const OpenedEngine& opened) {
  const Engine& engine = *opened;
  if (!flags.trace.empty())
    write_file(flags.trace,
               chrome_trace_json(engine.trace(), engine.machine(), engine.model().shape()));
  if (opened.recorder) opened.recorder->finish();
  if (!flags.json) std::fprintf(stderr, "\n%s", app::run_table(engine).c_str());
  if (opened.found.prediction && !flags.json) {
    const std::string text = app::comparison_text(*opened.found.prediction, engine.stats());
    if (!text.empty()) std::fprintf(stderr, "  %s\n", text.c_str());
  }
  if (opened.found.kept)
    opened.found.kept->learn(engine, flags.model,
                             flags.recalibrate ? Trust::kAll : Trust::kByEvidence, tell);
  else if (flags.recalibrate)
    tell("--recalibrate: there is no kept profile to change (sluice profile makes one)");
}

std::unique_ptr<text::Tokenizer> find_tokenizer(const EngineFlags& flags) {
  try {
    return app::find_tokenizer(flags.model, flags.pretokenizer);
  } catch (const Error& error) {
    // A folder's own files are mended there; of what a GGUF file holds token ids make up.
    if (error.kind() == ErrorKind::kUser || text::Tokenizer::exists(app::model_folder(flags.model)))
      throw;
    io::Checkpoint::open(flags.model);  // what is wrong with the file itself is said once, by this
    tell("warning: no tokenizer: " + in_flags(error.what()));
    return nullptr;
  }
}

std::unique_ptr<text::Tokenizer> need_tokenizer(const EngineFlags& flags) {
  return app::need_tokenizer(flags.model, flags.pretokenizer);
}

}  // namespace sluice::tools
