#include "policy/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/error.h"

namespace sluice::policy {

namespace {
[[noreturn]] void refuse(const Profile& profile, const std::string& what, const char* mend) {
  throw Error(ErrorKind::kUser, fmt::format("profile {}: {}", profile.name, what), mend);
}

// What some machine could do: beyond it a unit was mistaken (GB for bytes, TFLOP/s for FLOP/s).
constexpr double kLeastBytes = 1e4, kMostBytes = 1e15;  // a second
constexpr double kLeastFlops = 1e4, kMostFlops = 1e19;  // a second

void need_between(const Profile& profile, const Figure& figure, const std::string& what,
                  const char* unit, double least, double most) {
  if (figure.value >= least && figure.value <= most) return;
  refuse(profile, fmt::format("{} is {} {} a second", what, figure.value, unit),
         fmt::format("a rate is {:.0e} to {:.0e} {} a second; measure again (sluice profile) or "
                     "mend the file",
                     least, most, unit)
             .c_str());
}

void need_bytes(const Profile& profile, const Figure& figure, const std::string& what) {
  need_between(profile, figure, what, "bytes", kLeastBytes, kMostBytes);
}

void need_flops(const Profile& profile, const Figure& figure, const std::string& what) {
  need_between(profile, figure, what, "operations", kLeastFlops, kMostFlops);
}

// A disk's rate beside something else is no higher than its own.
void need_shared(const Profile& profile, const Figure& figure, const Figure& alone,
                 const std::string& what) {
  constexpr double kRounding = 1.001;
  need_bytes(profile, figure, what);
  if (figure.value > kRounding * alone.value)
    refuse(
        profile,
        fmt::format("{} is {}, more than the disk's {} by itself", what, figure.value, alone.value),
        "write what the disk gives beside other work, or the same");
}

void need_time(const Profile& profile, const Figure& figure, const std::string& what) {
  if (!(figure.value >= 0 && figure.value <= 10))
    refuse(profile, fmt::format("{} is {}", what, figure.value), "write 0 to 10 seconds");
}

void validate_processor(const Profile& profile, const Processor& processor,
                        const std::string& which) {
  need_bytes(profile, processor.memory_read, fmt::format("{}.memory_read", which));
  if (processor.matmul.empty())
    refuse(profile, fmt::format("{}.matmul has no rates", which), "give at least one row");
  for (const MatmulRate& row : processor.matmul) {
    if (row.m < 1 || row.n < 1 || row.k < 1)
      refuse(profile,
             fmt::format("{}.matmul has a size of {} x {} x {}", which, row.m, row.n, row.k),
             "sizes are positive");
    need_flops(profile, row.flops, fmt::format("{}.matmul m={}", which, row.m));
  }
  if (processor.attention.empty())
    refuse(profile, fmt::format("{}.attention has no rates", which), "give at least one row");
  for (const AttentionRate& row : processor.attention) {
    need_bytes(profile, row.decode_bytes, fmt::format("{}.attention.decode", which));
    need_flops(profile, row.prefill_flops, fmt::format("{}.attention.prefill", which));
    need_flops(profile, row.decode_flops, fmt::format("{}.attention.decode_flops", which));
  }
  need_time(profile, processor.launch_seconds, fmt::format("{}.launch_seconds", which));
  need_time(profile, processor.synchronise_seconds, fmt::format("{}.synchronise_seconds", which));
}

void validate_link(const Profile& profile, const Link& link, const std::string& which) {
  need_bytes(profile, link.to_device, which + ".to_device");
  need_bytes(profile, link.to_host, which + ".to_host");
  need_time(profile, link.latency_seconds, which + ".latency_seconds");
  const double share = link.both_share.value;
  if (!(share > 0 && share <= 1))
    refuse(profile, fmt::format("{}.both_share is {}", which, share), "write a share in (0, 1]");
}

const AttentionRate& attention_row(const Processor& processor, KvFormat kv_dtype) {
  for (const AttentionRate& row : processor.attention)
    if (row.kv_dtype == kv_dtype) return row;
  // Profiles of before int4 values beside int8 keys: the keys are two thirds of what is read.
  if (kv_dtype == kInt8KeysInt4Values) return attention_row(processor, KvFormat(KvEncoding::kInt8));
  // Bytes a second hardly differ from one type to another: one as wide, else any plain one.
  const int64_t bits = kv_dtype.is_quantised() ? 16 : dtype_bytes(kv_dtype.dtype) * 8;
  for (const AttentionRate& row : processor.attention)
    if (!row.kv_dtype.is_quantised() && dtype_bytes(row.kv_dtype.dtype) * 8 == bits) return row;
  for (const AttentionRate& row : processor.attention)
    if (!row.kv_dtype.is_quantised()) return row;
  return processor.attention.front();
}
}  // namespace

namespace {
// A stripe has the same bytes on each disk: it ends when the slowest has.
double striped(const std::vector<Disk>& disks, Figure Disk::*rate) noexcept {
  double least = std::numeric_limits<double>::infinity();
  for (const Disk& disk : disks) least = std::min(least, (disk.*rate).value);
  return disks.empty() ? 1 : least * static_cast<double>(disks.size());
}
}  // namespace

const Disk& Profile::disk() const noexcept {
  static const Disk kNone = [] {
    Disk out;
    for (Figure* rate : {&out.read, &out.write, &out.mixed_read, &out.mixed_write, &out.busy_read})
      rate->value = 1;
    return out;
  }();
  return disks.empty() ? kNone : disks.front();
}

Profile Profile::with_device(int64_t index) const {
  const auto count = static_cast<int64_t>(more_devices.size()) + (device ? 1 : 0);
  if (index < 0 || index >= count)
    throw Error(ErrorKind::kUser,
                count == 0 ? fmt::format("{} has no device", name)
                           : fmt::format("{} has no device {}: it has {}", name, index, count),
                count == 0 ? "leave `gpu` out, or choose `hardware` with one"
                           : fmt::format("give `gpu` a number from 0 to {}", count - 1));
  Profile out = *this;
  if (index == 0) return out;
  OtherDevice& other = out.more_devices[static_cast<size_t>(index) - 1];
  std::swap(*out.device, other.processor);
  std::swap(out.link, other.link);
  std::swap(out.device_bytes, other.bytes);
  return out;
}

double Profile::disk_read() const noexcept { return striped(disks, &Disk::read); }

double Profile::disk_write() const noexcept { return striped(disks, &Disk::write); }

double Profile::page_read_seconds(double pages) const noexcept {
  return pages * disk().read_request_seconds.value /
         static_cast<double>(std::max<size_t>(disks.size(), 1));
}

double Profile::page_write_seconds(double pages) const noexcept {
  return pages * disk().write_request_seconds.value /
         static_cast<double>(std::max<size_t>(disks.size(), 1));
}

double Profile::part_read_seconds(double bytes) const noexcept {
  constexpr double kWholeRequest = 1 << 20;
  return bytes > 0 && bytes < kWholeRequest ? page_read_seconds(1 - bytes / kWholeRequest) : 0;
}

void validate(const Profile& profile) {
  validate_processor(profile, profile.host, "host");
  if (profile.device) {
    validate_processor(profile, *profile.device, "device");
    validate_link(profile, profile.link, "link");
  }
  for (size_t i = 0; i < profile.more_devices.size(); ++i) {
    const OtherDevice& other = profile.more_devices[i];
    const std::string which = fmt::format("more_devices[{}]", i);
    validate_processor(profile, other.processor, which + ".device");
    validate_link(profile, other.link, which + ".link");
    if (other.bytes <= 0)
      refuse(profile, fmt::format("{}.device_memory_bytes is {}", which, other.bytes),
             "say how much there is");
  }
  if (!profile.more_devices.empty() && !profile.device)
    refuse(profile, "there are more_devices, and no device", "describe the first one as `device`");
  for (const auto& [delay, name] : {std::pair{profile.copy_delay.value, "copy_delay"},
                                    std::pair{profile.read_delay.value, "read_delay"}})
    if (!(delay >= 0 && delay < 1e-6))
      refuse(profile, fmt::format("{} is {}", name, delay),
             "write seconds for a byte, 0 where moving bytes costs no computing time");
  if (profile.copy_rate.value != 0) need_bytes(profile, profile.copy_rate, "copy_bytes_per_second");
  if (profile.disks.empty() && profile.disk_bytes != 0)
    refuse(profile, fmt::format("disk_bytes is {}, and there is no disk", profile.disk_bytes),
           "describe the disk in \"disks\", or leave disk_bytes out");
  for (const Disk& disk : profile.disks) {
    need_bytes(profile, disk.read, "disk.read");
    need_bytes(profile, disk.write, "disk.write");
    need_shared(profile, disk.mixed_read, disk.read, "disk.mixed_read");
    need_shared(profile, disk.mixed_write, disk.write, "disk.mixed_write");
    need_shared(profile, disk.busy_read, disk.read, "disk.busy_read");
    need_time(profile, disk.latency_seconds, "disk.latency_seconds");
    need_time(profile, disk.read_request_seconds, "disk.read_request_seconds");
    need_time(profile, disk.write_request_seconds, "disk.write_request_seconds");
  }
  for (const auto& [bytes, name] : {std::pair{profile.device_bytes, "device_memory_bytes"},
                                    std::pair{profile.host_bytes, "host_memory_bytes"},
                                    std::pair{profile.disk_bytes, "disk_bytes"}})
    if (bytes < 0) refuse(profile, fmt::format("{} is {}", name, bytes), "sizes are not negative");
  if (profile.host_bytes == 0) refuse(profile, "host_memory_bytes is 0", "say how much there is");
  if (profile.device && profile.device_bytes == 0)
    refuse(profile, "device_memory_bytes is 0", "say how much there is, or leave the device out");
}

namespace {
// Which rows of the table say most of a product with such weights, and whether they are of such
// weights. Asked for every product of every candidate: allocates nothing.
struct RateChoice {
  enum class Kind : uint8_t { kFormat, kEncoding, kAny };
  Kind kind = Kind::kFormat;
  WeightFormat weights;
  bool eight_bit_activations = false;
  bool is_same = true;

  bool takes(const MatmulRate& row) const noexcept {
    if (kind == Kind::kAny) return true;
    return row.eight_bit_activations == eight_bit_activations &&
           (kind == Kind::kFormat ? row.weights == weights
                                  : row.weights.encoding == weights.encoding);
  }
};

// Of K types those in one plane of codes are multiplied about as fast as Q4_K, those in two as
// Q6_K, and both as 4-bit codes; their bytes are their own.
std::optional<WeightFormat> multiplied_alike(const WeightFormat& weights) {
  switch (weights.encoding) {
    case Encoding::kQ2K:
    case Encoding::kQ4_1: return WeightFormat{Encoding::kQ4K, DType::kBF16, 256};
    case Encoding::kQ3K:
    case Encoding::kQ5K:
    case Encoding::kQ5_1:
    case Encoding::kIq1:
    case Encoding::kIq2: return WeightFormat{Encoding::kQ6K, DType::kBF16, 256};
    case Encoding::kQ4_0:
    case Encoding::kQ4K:
    case Encoding::kQ6K: return WeightFormat{Encoding::kInt4, DType::kBF16, 64};
    default: return std::nullopt;
  }
}

RateChoice choose_rates(const Processor& processor, const WeightFormat& weights,
                        bool eight_bit_activations) {
  RateChoice out;
  out.weights = weights;
  out.eight_bit_activations = weights.is_quantised() && eight_bit_activations;
  const auto has = [&] {
    return std::any_of(processor.matmul.begin(), processor.matmul.end(),
                       [&](const MatmulRate& row) { return out.takes(row); });
  };
  if (has()) return out;
  // Codes of fp8 are multiplied as they are only with one scale a row: other groups say nothing.
  if (out.eight_bit_activations && weights.encoding == Encoding::kFp8)
    return choose_rates(processor, weights, false);
  if (weights.is_quantised()) {  // another of its encoding: groups cost little
    out.kind = RateChoice::Kind::kEncoding;
    if (has()) return out;
    if (const auto like = multiplied_alike(weights)) {
      out = choose_rates(processor, *like, eight_bit_activations);
      out.is_same = false;
      return out;
    }
    if (out.eight_bit_activations) return choose_rates(processor, weights, false);
    out = {RateChoice::Kind::kFormat, WeightFormat::plain(DType::kBF16), false, false};
    if (has()) return out;
  }
  // Plain weights, of the same width if there are any.
  const MatmulRate* found = nullptr;
  for (const MatmulRate& row : processor.matmul) {
    if (row.weights.is_quantised()) continue;
    if (!found) found = &row;
    if (dtype_bytes(row.weights.dtype) == dtype_bytes(out.weights.dtype)) {
      found = &row;
      break;
    }
  }
  if (found)
    out.weights = found->weights;
  else
    out.kind = RateChoice::Kind::kAny;
  return out;
}

// Up to here a GPU unpacks quantised weights in registers (kernels/cuda/quantised_linear.h); for
// more rows it unpacks them to memory first. The CPU's kernels never do.
constexpr int64_t kUnpackedRows = 64;
// A row whose operations take less than so many times what its weights take to read was bound by
// the memory: it says nothing of the arithmetic.
constexpr double kBoundByMemory = 1.25;

bool is_bound_by_memory(const Processor& processor, const MatmulRate& row) noexcept {
  const double operations = 2 * static_cast<double>(row.m) * static_cast<double>(row.k);
  const double bytes = static_cast<double>(row.weights.row_bytes(row.k));
  return operations / row.flops.value <= kBoundByMemory * bytes / processor.memory_read.value;
}

// The rows of the table that say something of one product: those chosen, of the size of W nearest
// to its own; of other weights' rows only those that were not bound by reading those weights, or
// the fastest alone.
class Rates {
 public:
  Rates(const Processor& processor, const RateChoice& choice, double size)
      : processor_(processor), choice_(choice), size_(size) {
    for (const MatmulRate& row : processor.matmul)
      if (choice.takes(row)) nearest_ = std::min(nearest_, distance(row));
    if (choice.is_same) return;
    const MatmulRate* fastest = nullptr;
    bool has_arithmetic = false;
    for (const MatmulRate& row : processor.matmul) {
      if (!is_near(row)) continue;
      if (!fastest || row.flops.value > fastest->flops.value) fastest = &row;
      has_arithmetic = has_arithmetic || !is_bound_by_memory(processor, row);
    }
    if (!has_arithmetic) only_ = fastest;
  }

  /// At m, on straight lines of log rate over log m; flat beyond the ends.
  double at(int64_t m) const {
    const MatmulRate* low = nullptr;
    const MatmulRate* high = nullptr;
    for (const MatmulRate& row : processor_.matmul) {
      if (!takes(row)) continue;
      if (row.m <= m && (!low || row.m > low->m)) low = &row;
      if (row.m >= m && (!high || row.m < high->m)) high = &row;
    }
    if (!low || !high) return (low ? low : high)->flops.value;
    if (low->m == high->m) return low->flops.value;
    const double t = std::log(static_cast<double>(m) / static_cast<double>(low->m)) /
                     std::log(static_cast<double>(high->m) / static_cast<double>(low->m));
    return std::exp((1 - t) * std::log(low->flops.value) + t * std::log(high->flops.value));
  }

 private:
  double distance(const MatmulRate& row) const {
    const double other = static_cast<double>(row.n) * static_cast<double>(row.k);
    return std::max(size_ / other, other / size_);
  }
  bool is_near(const MatmulRate& row) const {
    return choice_.takes(row) && distance(row) <= nearest_ * (1 + 1e-9);
  }
  bool takes(const MatmulRate& row) const {
    if (only_) return &row == only_;
    return is_near(row) && (choice_.is_same || !is_bound_by_memory(processor_, row));
  }

  const Processor& processor_;
  const RateChoice& choice_;
  double size_;
  double nearest_ = std::numeric_limits<double>::infinity();
  const MatmulRate* only_ = nullptr;
};
}  // namespace

double matmul_seconds(const Processor& processor, const WeightFormat& weights,
                      bool eight_bit_activations, int64_t m, int64_t n, int64_t k) {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const RateChoice choice = choose_rates(processor, weights, eight_bit_activations);
  const double size = static_cast<double>(n) * static_cast<double>(k);
  const double flops = 2 * static_cast<double>(m) * size;
  const double bytes = static_cast<double>(n) * static_cast<double>(weights.row_bytes(k));
  double seconds =
      std::max(flops / Rates(processor, choice, size).at(m), bytes / processor.memory_read.value);
  const bool is_gpu = processor.threads == 0;
  if (!choice.is_same && is_gpu && m > kUnpackedRows)
    seconds += (bytes + 2 * size) / processor.memory_read.value;
  return seconds + processor.launch_seconds.value;
}

double matmul_seconds(const Processor& processor, DType weight_dtype, int64_t m, int64_t n,
                      int64_t k) {
  return matmul_seconds(processor, WeightFormat::plain(weight_dtype), false, m, n, k);
}

double decode_attention_seconds(const Processor& processor, KvFormat kv_dtype, double kv_bytes,
                                double flops) {
  const AttentionRate& row = attention_row(processor, kv_dtype);
  return std::max(kv_bytes / row.decode_bytes.value, flops / row.decode_flops.value);
}

double prefill_attention_seconds(const Processor& processor, KvFormat kv_dtype, double flops) {
  return flops / attention_row(processor, kv_dtype).prefill_flops.value;
}

}  // namespace sluice::policy
