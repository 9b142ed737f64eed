// Products, attention and memory of the host's cores, in rounds: the same figures again and again,
// so that each has samples that lie seconds apart.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/attention.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/processor_name.h"
#include "src/device/memory_probe.h"
#include "src/profile/measure_parts.h"
#include "src/profile/other_load.h"
#include "src/profile/product_bench.h"

namespace sluice {

namespace {
using Clock = std::chrono::steady_clock;
using policy::Figure;

// A product that takes longer is not tried with more rows: the rate is flat by then.
constexpr double kLongProduct = 0.25;

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = Clock::now();
  work();
  return seconds_since(start);
}

struct Kind {
  WeightFormat format;
  kernels::ActivationFormat activations = kernels::ActivationFormat::k16Bit;
};

std::vector<Kind> product_kinds(bool quick) {
  std::vector<Kind> kinds;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
    kinds.push_back({WeightFormat::plain(dtype)});
  for (const char* name : {"int4-g64", "int8", "q4_k", "q6_k", "nf4-g64", "fp8"}) {
    const WeightFormat format = *parse_weight_format(name);
    const bool takes_int8 = kernels::takes_int8_activations(format);
    // Near enough to 16-bit weights, and K types to 4-bit codes.
    if (quick && (!takes_int8 || format.is_k())) continue;
    kinds.push_back({format});
    if (takes_int8) kinds.push_back({format, kernels::ActivationFormat::kInt8});
  }
  return kinds;
}

void measure_products(policy::Processor& out, const MeasureLimits& limits) {
  const auto start = Clock::now();
  struct Size {
    int64_t n, k;
  };
  const std::vector<Size> sizes = limits.quick
                                      ? std::vector<Size>{{4096, 2048}}
                                      : std::vector<Size>{{768, 768}, {4096, 2048}, {8192, 8192}};
  const std::vector<int64_t> rows{1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  const ProductMemory memory(limits.memory_bytes);
  const int64_t most_rows = std::min(limits.most_rows, rows.back());
  for (const auto& [format, activations] : product_kinds(limits.quick))
    for (const Size& size : sizes) {
      ProductBench bench(memory, format, activations, size.n, size.k, most_rows);
      for (const int64_t m : rows) {
        if (m > bench.most_rows() || (limits.quick && m == 256)) continue;
        stop_if_asked(limits.cancel);
        // Where others have the cores a call each is all that there is time for.
        const bool is_late = seconds_since(start) > limits.product_seconds / 2;
        const double flops = bench.flops(m, is_late ? 0 : 0.012);
        out.matmul.push_back({format, m, bench.n(), bench.k(), best_of({flops}, ""),
                              activations == kernels::ActivationFormat::kInt8});
        const double call = 2.0 * static_cast<double>(m * bench.n() * bench.k()) / flops;
        if (call > kLongProduct && m >= 32) break;
      }
    }
}

// Eight sequences of 512 tokens where there is room for their KV, else fewer and shorter ones.
struct AttentionSize {
  int64_t sequences = 8;
  int64_t context = 512;
  int64_t chunk() const noexcept { return context * 3 / 4; }
};

class AttentionBench {
 public:
  AttentionBench(KvFormat kv, int kv_heads, const MeasureLimits& limits)
      : page_(static_cast<int>(kv.page_tokens())),
        page_bytes_(int64_t{kv_heads} * page_ * kv.pair_bytes(kHeadDim)),
        shape_{kHeads, kv_heads, kHeadDim, page_, 1.0f / std::sqrt(static_cast<float>(kHeadDim)),
               kv,     0},
        size_(fitting(limits.memory_bytes)),
        arena_("profile", INT64_MAX / 4),
        pages_(arena_.allocate(pages_bytes(size_), "pages")),
        q_(arena_.allocate(size_.chunk() * kColumns * 4, "q")),
        out_(arena_.allocate(size_.chunk() * kColumns * 4, "out")),
        scratch_floats_(kernels::attention_scratch_floats(shape_, limits.threads)),
        scratch_(arena_.allocate(std::max<int64_t>(scratch_floats_ * 4, 64), "scratch")) {
    // Touched, or all pages would be the kernel's one page of zeros.
    if (kv == DType::kF32)
      std::fill_n(pages_.as<float>(), pages_.size() / 4, 0.01f);
    else
      std::fill_n(pages_.as<uint16_t>(), pages_.size() / 2,
                  kv == DType::kBF16 ? f32_to_bf16(0.01f) : f32_to_f16(0.01f));
    std::fill_n(q_.as<float>(), size_.chunk() * kColumns, 0.1f);
    for (int64_t i = 0; i < size_.sequences * size_.context / page_; ++i)
      addresses_.push_back(pages_.data() + i * page_bytes_);
  }

  struct Rates {
    double decode_bytes, decode_flops, prefill_flops;
  };
  Rates rates() {
    std::vector<kernels::AttentionSequence> decode;
    for (int64_t s = 0; s < size_.sequences; ++s)
      decode.push_back(sequence(s, static_cast<int32_t>(size_.context - 1), 1));
    const std::vector<kernels::AttentionSequence> prefill{
        sequence(0, 0, static_cast<int32_t>(size_.chunk()))};
    double best_decode = INFINITY;
    double best_prefill = INFINITY;
    const auto start = Clock::now();
    for (int i = 0; i < kCalls && (i == 0 || seconds_since(start) < kEnoughSeconds); ++i) {
      if (pages_.size() < kBeyondCaches) evict_from_caches(pages_.span());
      best_decode = std::min(best_decode, seconds_of([&] { attend(decode); }));
      best_prefill = std::min(best_prefill, seconds_of([&] { attend(prefill); }));
    }
    const auto chunk = static_cast<double>(size_.chunk());
    return {static_cast<double>(pages_.size()) / best_decode,
            4.0 * static_cast<double>(size_.sequences * size_.context * kColumns) / best_decode,
            4.0 * chunk * (chunk + 1) / 2 * kColumns / best_prefill};
  }

 private:
  static constexpr int kHeads = 32, kHeadDim = 128, kColumns = kHeads * kHeadDim, kCalls = 5;
  static constexpr double kEnoughSeconds = 0.3;

  int64_t pages_bytes(const AttentionSize& size) const {
    return size.sequences * size.context / page_ * page_bytes_;
  }
  AttentionSize fitting(int64_t bytes) const {
    AttentionSize size;
    const auto taken = [&] { return pages_bytes(size) + 2 * size.chunk() * kColumns * 4; };
    while (taken() > bytes && size.sequences > 1) size.sequences /= 2;
    while (taken() > bytes && size.context > 64) size.context /= 2;
    return size;
  }
  kernels::AttentionSequence sequence(int64_t index, int32_t first_position, int32_t count) {
    const int64_t row = count == 1 ? index % size_.chunk() : 0;
    return {q_.as<float>() + row * kColumns,
            kColumns,
            first_position,
            count,
            addresses_.data() + index * size_.context / page_,
            out_.as<float>() + row * kColumns,
            kColumns,
            nullptr};
  }
  void attend(const std::vector<kernels::AttentionSequence>& sequences) {
    kernels::attention(shape_, sequences, scratch_.as<float>(), scratch_floats_);
  }

  int page_;
  int64_t page_bytes_;
  kernels::AttentionShape shape_;
  AttentionSize size_;
  Arena arena_;
  Buffer pages_, q_, out_;
  int64_t scratch_floats_;
  Buffer scratch_;
  std::vector<std::byte*> addresses_;
};

policy::AttentionRate measure_attention(KvFormat kv, const MeasureLimits& limits) {
  stop_if_asked(limits.cancel);
  const auto alone = AttentionBench(kv, 32, limits).rates();
  stop_if_asked(limits.cancel);
  const auto shared = AttentionBench(kv, 4, limits).rates();
  return {kv, best_of({alone.decode_bytes}, "8 sequences of 512 tokens, 32 heads of 128"),
          best_of({alone.prefill_flops}, "384 tokens"),
          best_of({shared.decode_flops}, "8 query heads to each K and V")};
}

double measure_launch() {
  constexpr int64_t kSide = 64;
  const ProductMemory memory(2 * kMiB);
  // A product that is too small to matter but goes through the whole call.
  ProductBench bench(memory, WeightFormat::plain(DType::kF32), kernels::ActivationFormat::k16Bit,
                     kSide, kSide, 1);
  return 2.0 * kSide * kSide / bench.flops(1, 0.01);
}

policy::Processor one_round(const MeasureLimits& limits) {
  policy::Processor out;
  out.name = processor_name();
  out.threads = limits.threads;
  measure_products(out, limits);
  // What products of few rows read is what decode gets.
  std::vector<KvFormat> kv_formats{DType::kBF16, DType::kF16, DType::kF32};
  if (!limits.quick) kv_formats.insert(kv_formats.end(), kQuantisedKv.begin(), kQuantisedKv.end());
  for (const KvFormat& format : kv_formats)
    out.attention.push_back(measure_attention(format, limits));
  const double launch = measure_launch();
  out.launch_seconds = best_of({launch}, "a product of 64 x 64");
  out.synchronise_seconds = best_of({launch}, "as a launch: no queue");
  return out;
}

void keep_best(Figure& figure, const std::vector<double>& samples) {
  const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
  figure.value = *most;
  figure.spread = *most > 0 ? (*most - *least) / *most : 0;
}

// The rounds' best of every figure; a row that some round left out counts where it is.
policy::Processor combined(std::vector<policy::Processor>& rounds) {
  auto longest = std::max_element(rounds.begin(), rounds.end(), [](const auto& a, const auto& b) {
    return a.matmul.size() < b.matmul.size();
  });
  policy::Processor out = *longest;
  const auto same = [](const policy::MatmulRate& a, const policy::MatmulRate& b) {
    return a.weights == b.weights && a.m == b.m && a.n == b.n && a.k == b.k &&
           a.eight_bit_activations == b.eight_bit_activations;
  };
  for (policy::MatmulRate& row : out.matmul) {
    std::vector<double> samples;
    for (const policy::Processor& round : rounds)
      for (const policy::MatmulRate& other : round.matmul)
        if (same(row, other)) samples.push_back(other.flops.value);
    keep_best(row.flops, samples);
  }
  for (size_t i = 0; i < out.attention.size(); ++i)
    for (Figure policy::AttentionRate::*figure :
         {&policy::AttentionRate::decode_bytes, &policy::AttentionRate::prefill_flops,
          &policy::AttentionRate::decode_flops}) {
      std::vector<double> samples;
      for (const policy::Processor& round : rounds)
        samples.push_back((round.attention[i].*figure).value);
      keep_best(out.attention[i].*figure, samples);
    }
  for (const policy::Processor& round : rounds)
    if (round.launch_seconds.value < out.launch_seconds.value) {
      out.launch_seconds.value = round.launch_seconds.value;
      out.synchronise_seconds.value = round.synchronise_seconds.value;
    }
  return out;
}

// A product of more rows has no lower rate. Where a sample says so, somebody else had the cores.
void raise_to_fewer_rows(policy::Processor& processor) {
  constexpr double kAllowed = 0.85;  // kernels change with the number of rows
  double most = 0;
  for (size_t i = 1; i < processor.matmul.size(); ++i) {
    const policy::MatmulRate& before = processor.matmul[i - 1];
    policy::MatmulRate& row = processor.matmul[i];
    const bool is_next = row.weights == before.weights && row.n == before.n && row.k == before.k &&
                         row.m > before.m &&
                         row.eight_bit_activations == before.eight_bit_activations;
    most = is_next ? std::max(most, before.flops.value) : 0;
    row.flops.value = std::max(row.flops.value, kAllowed * most);
  }
}
}  // namespace

policy::Processor measure_host_processor(const MeasureLimits& limits, double& cores_taken) {
  constexpr size_t kLeastRounds = 2;
  const size_t wanted = limits.quick ? 2 : 3;
  const size_t most = wanted + 2;
  std::vector<policy::Processor> rounds;
  const auto start = Clock::now();
  OtherLoad others(limits.threads);
  cores_taken = INFINITY;
  bool is_quiet = false;
  double longest = 0;
  // While the cores are not ours: again, up to twice the time.
  while (rounds.size() < wanted || (!is_quiet && rounds.size() < most)) {
    const double limit = limits.product_seconds * (is_quiet || rounds.size() < wanted ? 1 : 1.6);
    if (rounds.size() >= kLeastRounds && seconds_since(start) + longest > limit) break;
    if (!rounds.empty() && longest > limits.product_seconds) break;
    others.begin();
    longest = std::max(longest, seconds_of([&] { rounds.push_back(one_round(limits)); }));
    const double taken = others.cores_taken();
    cores_taken = std::min(cores_taken, taken);
    is_quiet = others.is_quiet(cores_taken);
  }
  policy::Processor out = combined(rounds);
  raise_to_fewer_rows(out);
  return out;
}

Figure best_of(std::vector<double> samples, std::string note) {
  Figure out;
  keep_best(out, samples);
  out.source = policy::FigureSource::kMeasured;
  out.note = std::move(note);
  return out;
}

Figure median_of(std::vector<double> samples, std::string note) {
  std::sort(samples.begin(), samples.end());
  Figure out;
  out.value = samples[samples.size() / 2];
  out.spread = out.value > 0 ? (samples.back() - samples.front()) / out.value : 0;
  out.source = policy::FigureSource::kMeasured;
  out.note = std::move(note);
  return out;
}

void stop_if_asked(const std::stop_token& cancel) {
  if (cancel.stop_requested())
    throw Error(ErrorKind::kCancelled, "measuring the machine was stopped",
                "nothing has been kept; the next run measures again");
}

}  // namespace sluice
