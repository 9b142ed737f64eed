#include "src/profile/measure.h"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/quantised_linear.h"
#include "src/base/arena.h"
#include "src/base/bytes.h"
#include "src/device/memory_limit.h"
#include "src/device/memory_probe.h"
#include "src/profile/measure_parts.h"

namespace sluice {

namespace {
using Clock = std::chrono::steady_clock;
using policy::Figure;
using policy::FigureSource;

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return 1;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name"))
      return line.substr(std::min(line.find(':') + 2, line.size()));
  return "CPU";
}

std::string now_iso() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// Products of one size, over weights that are larger together than the caches.
class ProductBench {
 public:
  ProductBench(const WeightFormat& format, kernels::ActivationFormat activations, int64_t n,
               int64_t k, int64_t most_rows, int64_t weight_bytes)
      : format_(format),
        n_(n),
        k_(k),
        matrix_bytes_(format.bytes(n, k)),
        matrices_(std::max<int64_t>(weight_bytes / matrix_bytes_, 1)),
        options_{(format.is_quantised() || format.dtype == DType::kBF16) &&
                         kernels::bf16_compute_supported()
                     ? kernels::Compute::kBF16
                     : kernels::Compute::kF32,
                 activations},
        arena_("profile", INT64_MAX / 4),
        weights_(arena_.allocate(matrices_ * matrix_bytes_, "weights")),
        x_(arena_.allocate(kernels::padded_rows(most_rows) * k * 4, "x")),
        x16_(arena_.allocate(kernels::padded_rows(most_rows) * k * 2, "x")),
        y_(arena_.allocate(kernels::padded_rows(most_rows) * n * 4, "y")),
        scratch_(arena_.allocate(
            std::max<int64_t>(format.is_quantised()
                                  ? kernels::quantised_scratch_bytes(format, most_rows, k, options_)
                                  : kernels::linear_scratch_bytes(format.dtype, most_rows, n, k,
                                                                  options_.compute),
                              64),
            "scratch")) {
    // Small numbers, so that no sum overflows or meets subnormal arithmetic.
    // Any bits are codes, and these are small numbers as f16 or f32 scales too.
    if (!format.is_quantised() && format.dtype == DType::kF32)
      std::fill_n(weights_.as<float>(), matrices_ * n * k, 0.01f);
    else
      std::fill_n(weights_.as<uint16_t>(), matrices_ * matrix_bytes_ / 2,
                  !format.is_quantised() && format.dtype == DType::kBF16 ? f32_to_bf16(0.01f)
                                                                         : f32_to_f16(0.01f));
    std::fill_n(x_.as<float>(), kernels::padded_rows(most_rows) * k, 0.5f);
    std::fill_n(x16_.as<uint16_t>(), kernels::padded_rows(most_rows) * k, f32_to_bf16(0.5f));
  }

  double flops(int64_t m, double least_seconds) {
    run(m);
    int64_t rounds = 0;
    double seconds = 0;
    // All of them once, so that the caches hold none; products of many rows don't notice.
    while (seconds < least_seconds || (rounds < matrices_ && seconds < 3 * least_seconds)) {
      seconds += seconds_of([&] { run(m); });
      if (++rounds > 4096) break;
    }
    return 2.0 * static_cast<double>(m * n_ * k_) * static_cast<double>(rounds) / seconds;
  }

 private:
  void run(int64_t m) {
    const kernels::Activations x{x_.as<float>(), x16_.as<uint16_t>(), m, k_, k_};
    const std::byte* w = weights_.data() + (next_++ % matrices_) * matrix_bytes_;
    if (format_.is_quantised())
      kernels::linear_quantised(x, w, format_, n_, nullptr, y_.as<float>(), n_, options_,
                                scratch_.span());
    else
      kernels::linear(x, w, format_.dtype, n_, k_, nullptr, y_.as<float>(), n_, options_.compute,
                      scratch_.span());
  }

  WeightFormat format_;
  int64_t n_, k_, matrix_bytes_, matrices_;
  kernels::QuantisedOptions options_;
  Arena arena_;
  Buffer weights_, x_, x16_, y_, scratch_;
  int64_t next_ = 0;
};

void measure_products(policy::Processor& out, bool quick, int64_t weight_bytes, int64_t most_rows) {
  struct Size {
    int64_t n, k;
  };
  const std::vector<Size> sizes = quick ? std::vector<Size>{{4096, 2048}}
                                        : std::vector<Size>{{768, 768}, {4096, 2048}, {8192, 8192}};
  std::vector<int64_t> rows = quick ? std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 512}
                                    : std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  std::erase_if(rows, [&](int64_t m) { return m > most_rows; });
  const int samples = quick ? 2 : 3;
  struct Kind {
    WeightFormat format;
    kernels::ActivationFormat activations = kernels::ActivationFormat::k16Bit;
  };
  std::vector<Kind> kinds;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
    kinds.push_back({WeightFormat::plain(dtype)});
  for (const char* name : {"int4-g64", "int8", "nf4-g64", "fp8"}) {
    const WeightFormat format = *parse_weight_format(name);
    const bool takes_int8 = kernels::takes_int8_activations(format);
    if (quick && !takes_int8) continue;  // near enough to 16-bit weights
    kinds.push_back({format});
    if (takes_int8) kinds.push_back({format, kernels::ActivationFormat::kInt8});
  }
  for (const auto& [format, activations] : kinds)
    for (const Size& size : sizes) {
      ProductBench bench(format, activations, size.n, size.k, rows.back(), weight_bytes);
      for (const int64_t m : rows) {
        std::vector<double> rates;
        for (int i = 0; i < samples; ++i) rates.push_back(bench.flops(m, quick ? 0.02 : 0.05));
        out.matmul.push_back({format, m, size.n, size.k, measured(rates, ""),
                              activations == kernels::ActivationFormat::kInt8});
      }
    }
}

struct AttentionSamples {
  std::vector<double> decode_bytes, decode_flops, prefill_flops;
};

AttentionSamples time_attention(KvFormat kv_dtype, int kv_heads, int threads, int samples) {
  constexpr int kHeads = 32, kHeadDim = 128, kSequences = 8;
  const auto page = static_cast<int>(kv_dtype.page_tokens());
  constexpr int64_t kContext = 512, kChunk = 384, kColumns = kHeads * kHeadDim;
  const kernels::AttentionShape shape{
      kHeads,   kv_heads, kHeadDim, page, 1.0f / std::sqrt(static_cast<float>(kHeadDim)),
      kv_dtype, 0};
  const int64_t page_bytes = int64_t{2} * kv_heads * page * kv_dtype.row_bytes(kHeadDim);
  Arena arena("profile", INT64_MAX / 4);
  const Buffer pages = arena.allocate(kSequences * kContext / page * page_bytes, "pages");
  const Buffer q = arena.allocate(kChunk * kColumns * 4, "q");
  const Buffer out = arena.allocate(kChunk * kColumns * 4, "out");
  const int64_t scratch_floats = kernels::attention_scratch_floats(shape, threads);
  const Buffer scratch = arena.allocate(scratch_floats * 4, "scratch");
  // Touched, or all pages would be the kernel's one page of zeros.
  if (kv_dtype == DType::kF32)
    std::fill_n(pages.as<float>(), pages.size() / 4, 0.01f);
  else
    std::fill_n(pages.as<uint16_t>(), pages.size() / 2,
                kv_dtype == DType::kBF16 ? f32_to_bf16(0.01f) : f32_to_f16(0.01f));
  std::fill_n(q.as<float>(), kChunk * kColumns, 0.1f);
  std::vector<std::byte*> addresses;
  for (int64_t i = 0; i < kSequences * kContext / page; ++i)
    addresses.push_back(pages.data() + i * page_bytes);
  std::vector<kernels::AttentionSequence> decode(kSequences);
  for (int s = 0; s < kSequences; ++s)
    decode[static_cast<size_t>(s)] = {q.as<float>() + s * kColumns,
                                      kColumns,
                                      kContext - 1,
                                      1,
                                      addresses.data() + s * kContext / page,
                                      out.as<float>() + s * kColumns,
                                      kColumns,
                                      nullptr};
  const std::vector<kernels::AttentionSequence> prefill{
      {q.as<float>(), kColumns, 0, kChunk, addresses.data(), out.as<float>(), kColumns, nullptr}};
  AttentionSamples rates;
  for (int i = 0; i <= samples; ++i) {
    const double d =
        seconds_of([&] { kernels::attention(shape, decode, scratch.as<float>(), scratch_floats); });
    const double p = seconds_of(
        [&] { kernels::attention(shape, prefill, scratch.as<float>(), scratch_floats); });
    if (i == 0) continue;  // pages and caches
    rates.decode_bytes.push_back(static_cast<double>(pages.size()) / d);
    rates.decode_flops.push_back(4.0 * kSequences * kContext * kColumns / d);
    rates.prefill_flops.push_back(4.0 * kChunk * (kChunk + 1) / 2 * kColumns / p);
  }
  return rates;
}

policy::AttentionRate measure_attention(KvFormat kv_dtype, int threads, int samples) {
  const AttentionSamples alone = time_attention(kv_dtype, 32, threads, samples);
  const AttentionSamples shared = time_attention(kv_dtype, 4, threads, samples);
  return {kv_dtype, measured(alone.decode_bytes, "8 sequences of 512 tokens, 32 heads of 128"),
          measured(alone.prefill_flops, "384 tokens"),
          measured(shared.decode_flops, "8 query heads to each K and V")};
}

// How much slower products get while another thread moves bytes with `move` (which returns how
// many), for each byte: the mean of a product bound by memory and one bound by arithmetic.
// `moved_rate`, when given, gets the rate of the other thread beside the products.
template <typename Move>
Figure measure_delay(const Move& move, const char* note, Figure* moved_rate) {
  constexpr double kSeconds = 1.2;
  std::vector<double> delays;
  std::vector<double> rates;
  for (const int64_t m : {1, 64}) {
    ProductBench bench(WeightFormat::plain(DType::kBF16), kernels::ActivationFormat::k16Bit, 4096,
                       2048, m, 256 * kMiB);
    const double alone = bench.flops(m, kSeconds);
    std::atomic<int64_t> moved = 0;
    std::atomic<bool> is_over = false;
    const auto start = Clock::now();
    double beside = 0;
    double seconds = 0;
    {
      const std::jthread mover([&] {
        while (!is_over) moved += move();
      });
      beside = bench.flops(m, kSeconds);
      seconds = std::chrono::duration<double>(Clock::now() - start).count();
      is_over = true;
    }
    const double rate = static_cast<double>(moved) / seconds;
    rates.push_back(rate);
    delays.push_back(rate > 0 ? std::max(0.0, (alone / beside - 1) / rate) : 0);
  }
  if (moved_rate) *moved_rate = measured({(rates[0] + rates[1]) / 2}, "while the cores compute");
  return measured({(delays[0] + delays[1]) / 2}, note);
}

Figure measure_copy_delay() {
  constexpr double kRate = 3e9;
  constexpr int64_t kBlock = 4 * kMiB;
  Arena arena("profile", INT64_MAX / 4);
  const Buffer from = arena.allocate(128 * kMiB, "copies");
  const Buffer to = arena.allocate(128 * kMiB, "copies");
  std::memset(from.data(), 1, static_cast<size_t>(from.size()));
  std::memset(to.data(), 1, static_cast<size_t>(to.size()));
  int64_t block = 0;
  auto due = Clock::now();
  const auto copy = [&] {
    const int64_t offset = block++ * kBlock % from.size();
    std::memcpy(to.data() + offset, from.data() + offset, static_cast<size_t>(kBlock));
    due = std::max(due, Clock::now() - std::chrono::milliseconds(1)) +
          std::chrono::duration_cast<Clock::duration>(
              std::chrono::duration<double>(static_cast<double>(kBlock) / kRate));
    std::this_thread::sleep_until(due);
    return kBlock;
  };
  return measure_delay(copy, "products beside copies at 3 GB/s", nullptr);
}

// The disk and the cores beside each other.
void measure_read_delay(const std::string& folder, int64_t bytes, policy::Profile& out) {
  const ReadLoop loop(folder, std::min(bytes, 256 * kMiB));
  out.read_delay = measure_delay([&] { return loop.read(); }, "products beside reads",
                                 &out.disks.front().busy_read);
  Figure& busy = out.disks.front().busy_read;
  busy.value = std::min(busy.value, out.disks.front().read.value);
}

double measure_launch() {
  constexpr int64_t kSide = 64;
  // A product that is too small to matter but goes through the whole call.
  ProductBench bench(WeightFormat::plain(DType::kF32), kernels::ActivationFormat::k16Bit, kSide,
                     kSide, 1, kSide * kSide * 4);
  return 2.0 * kSide * kSide / bench.flops(1, 0.01);
}

policy::Processor measure_host_processor(int threads, int64_t weight_bytes,
                                         const MeasureOptions& options) {
  const bool quick = options.quick;
  omp_set_num_threads(threads);
  policy::Processor out;
  out.name = processor_name();
  out.threads = threads;
  out.memory_read = measured({probe_memory_read_rate(std::min(weight_bytes, 512 * kMiB), threads)},
                             "plain sum, best of five");
  measure_products(out, quick, weight_bytes, options.most_rows);
  // What products of few rows read is what decode gets.
  std::vector<KvFormat> kv_formats{DType::kBF16, DType::kF16, DType::kF32};
  if (!quick) {
    kv_formats.emplace_back(KvEncoding::kInt8);
    kv_formats.emplace_back(KvEncoding::kInt4);
  }
  for (const KvFormat& format : kv_formats)
    out.attention.push_back(measure_attention(format, threads, quick ? 2 : 4));
  const double launch = measure_launch();
  out.launch_seconds = measured({launch}, "a product of 64 x 64");
  out.synchronise_seconds = measured({launch}, "as a launch: no queue");
  return out;
}
}  // namespace

Figure measured(std::vector<double> samples, std::string note) {
  std::sort(samples.begin(), samples.end());
  Figure out;
  out.value = samples[samples.size() / 2];
  out.spread = out.value > 0 ? (samples.back() - samples.front()) / out.value : 0;
  out.source = FigureSource::kMeasured;
  out.note = std::move(note);
  return out;
}

policy::Profile measure_profile(const MeasureOptions& options) {
  const auto say = [&](std::string_view what) {
    if (options.progress) options.progress(what);
  };
  policy::Profile out;
  const int threads = options.threads > 0 ? options.threads : usable_processors();
  const std::string folder = options.offload_dir.empty()
                                 ? std::filesystem::temp_directory_path().string()
                                 : options.offload_dir;
  const MemoryLimit memory = memory_limit();
  out.host_bytes = memory.total_bytes;
  out.disk_bytes = disk_space(folder);
  out.date = now_iso();
  say("the disk");
  const int64_t file_bytes = options.disk_bytes > 0 ? options.disk_bytes
                             : options.quick        ? 512 * kMiB
                                                    : 2 * kGiB;
  out.disks = {measure_disk(folder, file_bytes, options.quick ? 1 : 3)};
  if (options.only_disk_of) {
    policy::Profile same = *options.only_disk_of;
    const policy::Disk& before = same.disks.front();
    // The cores are not asked again: their effect on the disk stays in proportion.
    out.disks.front().busy_read = before.busy_read;
    out.disks.front().busy_read.value *= out.disks.front().read.value / before.read.value;
    same.disks = out.disks;
    same.disk_bytes = out.disk_bytes;
    return same;
  }
  say("memory");
  const int64_t buffer = options.memory_bytes > 0
                             ? options.memory_bytes
                             : std::min<int64_t>(memory.available_bytes / 8, 512 * kMiB);
  for (int count = 1; count <= threads;
       count = count < threads ? std::min(2 * count, threads) : count + 1)
    out.host_memory.push_back(
        {count, measured({probe_memory_read_rate(buffer, count)}, "plain sum, best of five")});
  say("products and attention");
  out.host = measure_host_processor(threads, buffer, options);
  out.copy_delay = measure_copy_delay();
  measure_read_delay(folder, file_bytes, out);
  out.name = fmt::format("{} x{}", out.host.name, threads);
  out.description = fmt::format("measured by sluice{}; memory limit from {}",
                                options.quick ? " (quick)" : "", memory.source);
  validate(out);
  return out;
}

policy::Profile emulated_profile(const policy::Profile& cpu, int64_t device_bytes, double to_device,
                                 double to_host, double latency_seconds, double flops) {
  constexpr double kUnlimited = 1e12;
  policy::Profile out = cpu;
  out.name = cpu.name + " with an emulated device";
  out.device = cpu.host;
  if (flops > 0) {
    for (policy::MatmulRate& row : out.device->matmul)
      row.flops.value = std::min(row.flops.value, flops);
    for (policy::AttentionRate& row : out.device->attention)
      row.prefill_flops.value = std::min(row.prefill_flops.value, flops);
  }
  const auto set = [](double value) {
    return Figure{value, 0, FigureSource::kEstimate, "as set for the emulated link"};
  };
  // The copies are real: no link is faster than a core copies.
  double copy = kUnlimited;
  if (!cpu.host_memory.empty()) copy = cpu.host_memory.front().memory_read.value * 0.4;
  out.link.to_device = set(std::min(to_device > 0 ? to_device : kUnlimited, copy));
  out.link.to_host = set(std::min(to_host > 0 ? to_host : kUnlimited, copy));
  out.link.both_share = set(1);
  out.link.latency_seconds = set(latency_seconds);
  out.shares_cores = true;
  out.device_bytes = device_bytes;
  return out;
}

}  // namespace sluice
