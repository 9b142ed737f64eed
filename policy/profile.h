#pragma once
// What a machine can do, as measured numbers: processors, links, disks, memory sizes. Read by the
// cost model and the simulator; written by `sluice profile`, shipped for machines people ask about,
// or edited by hand (docs/formats/profile.md). Pure values; no measuring here.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/kv_format.h"
#include "src/base/weight_format.h"

namespace sluice::policy {

/// Where a number comes from.
enum class FigureSource : uint8_t {
  kMeasured,   ///< by sluice on that machine
  kPublished,  ///< measured by others and published
  kDatasheet,  ///< the maker's data sheet
  kEstimate    ///< derived from the others, for want of better
};

/// One number with its spread ((largest - smallest) / median of the samples; 0 for a single one).
struct Figure {
  double value = 0;
  double spread = 0;
  FigureSource source = FigureSource::kEstimate;
  std::string note;  ///< where published, or how derived; may be empty
};

/// Rate of y[m, n] = x[m, k] W[n, k]^T for one point of the table, multiply-adds counted as two.
struct MatmulRate {
  WeightFormat weights = WeightFormat::plain(DType::kBF16);
  int64_t m = 1;
  int64_t n = 0;
  int64_t k = 0;
  Figure flops;                        ///< floating-point operations per second
  bool eight_bit_activations = false;  ///< int8, or fp8 where W is kFp8
};

/// Attention by KV element type.
struct AttentionRate {
  KvFormat kv_dtype = DType::kBF16;
  Figure decode_bytes;   ///< bytes of K and V read per second, one query token a sequence
  Figure prefill_flops;  ///< operations per second over the visible (query, key) pairs only
  /// Operations per second of single query tokens whose heads share K and V (GQA, MQA).
  Figure decode_flops;
};

/// One thing that computes: the device or the host's cores.
struct Processor {
  std::string name;
  std::string conditions;  ///< clocks and temperature of a GPU while it was measured; may be empty
  int threads = 0;         ///< of a CPU; 0 for a GPU
  Figure memory_read;      ///< bytes per second
  std::vector<MatmulRate> matmul;
  std::vector<AttentionRate> attention;
  Figure launch_seconds;       ///< of one operator, whatever its size
  Figure synchronise_seconds;  ///< to learn that a task has ended
};

/// Host memory to device memory and back, pinned.
struct Link {
  Figure to_device;        ///< bytes per second, alone
  Figure to_host;          ///< bytes per second, alone
  Figure both_share;       ///< of each rate when both run at once, (0, 1]
  Figure latency_seconds;  ///< of one copy
};

/// One disk.
struct Disk {
  std::string path;  ///< folder it was measured in; empty in shipped profiles
  Figure read;       ///< bytes per second, sequential, at the engine's request size and depth
  Figure write;
  Figure mixed_read;  ///< while writing as fast as it can
  Figure mixed_write;
  Figure busy_read;        ///< while the cores compute
  Figure latency_seconds;  ///< of one read
  /// What a request takes besides its bytes, many in flight (KV pages are small). 0: not known.
  Figure read_request_seconds;
  Figure write_request_seconds;
};

/// A device beside the one that plans are for: a machine may have several, a run computes on one.
struct OtherDevice {
  Processor processor;
  Link link;
  int64_t bytes = 0;  ///< of its memory
};

/// What so many threads read.
struct ThreadRate {
  int threads = 1;
  Figure memory_read;
};

struct Profile {
  std::string name;
  std::string description;
  std::string date;  ///< ISO 8601, of the measurement
  /// Nothing: the host's cores compute, and host memory is the top tier (two tiers).
  std::optional<Processor> device;
  Processor host;
  Link link;                              ///< only with a device
  std::vector<OtherDevice> more_devices;  ///< beside `device`, numbered from 1
  /// Striped: as many times the slowest's rate. None: nothing of a model can lie below the memory.
  std::vector<Disk> disks;
  /// Device and host compute on the same cores (an emulated device): their times add up.
  bool shares_cores = false;
  /// Where copies over the link take the computing cores' time and memory (an emulated device):
  /// seconds by which one byte delays computing.
  Figure copy_delay;
  /// Bytes a second that one core copies from memory to memory: no emulated link is faster. 0: not
  /// measured.
  Figure copy_rate;
  /// Seconds by which one byte read from disk delays computing on the host's cores (the kernel's
  /// share, and what the transfer takes of the memory).
  Figure read_delay;
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  std::vector<ThreadRate> host_memory;  ///< by thread count, rising

  /// Whether the device has a memory and copy engines of its own: then copies, reading the disk and
  /// the host's cores share the host's memory, and nothing else does.
  bool shares_host_memory() const noexcept { return device && !shares_cores; }
  /// The first disk; without one a disk that nothing should be on: a byte a second.
  const Disk& disk() const noexcept;
  /// The same machine with its device `index` (0: `device`) in the place of `device`. Errors: kUser
  /// when it has no such device.
  Profile with_device(int64_t index) const;
  double disk_read() const noexcept;  ///< of all disks together
  double disk_write() const noexcept;
  /// What `pages` requests of KV pages take besides their bytes, of all disks together.
  double page_read_seconds(double pages) const noexcept;
  double page_write_seconds(double pages) const noexcept;
  /// The same for a read of `bytes` in one piece: nothing from a whole request (1 MiB) on, whose
  /// time is in the disk's rate.
  double part_read_seconds(double bytes) const noexcept;
};

/// Reads a profile from JSON text. `origin` (a path or a name) appears in errors. Errors: kUser for
/// unknown keys, missing, zero, negative or non-finite rates, each with its path in the JSON.
Profile parse_profile(std::string_view json_text, std::string_view origin);

/// The same JSON, indented, with units in the keys' names (bytes_per_second, seconds, flops).
std::string profile_to_json(const Profile& profile);

/// Errors: kUser naming the first figure that can't be computed with.
void validate(const Profile& profile);

/// Names of the shipped profiles (t4, flexgen-t4, rtx-4090, ...).
std::vector<std::string> shipped_profile_names();
/// A shipped profile, or nothing when the name is unknown.
std::optional<Profile> shipped_profile(std::string_view name);

/// Seconds of one product y[m, n] = x[m, k] W[n, k]^T: the larger of operations over the table's
/// rate (between m's on a log-log line; of the row whose n * k is nearest; types that the table
/// lacks take the nearest type's rows) and the bytes of W over memory_read, plus one launch. 0 when
/// n or m is 0. A quantised W that the table has no rows of: the bytes of the codes, and the
/// operations at the plain type's rates where those were not bound by reading plain weights; on a
/// GPU beyond 64 rows of x also the unpacking of W (read, and written as 16-bit elements).
double matmul_seconds(const Processor& processor, const WeightFormat& weights,
                      bool eight_bit_activations, int64_t m, int64_t n, int64_t k);
/// The same of plain weights.
double matmul_seconds(const Processor& processor, DType weight_dtype, int64_t m, int64_t n,
                      int64_t k);
/// Seconds of decode attention that reads `kv_bytes` of K and V and does `flops` operations on
/// them, whichever takes longer (launch not included).
double decode_attention_seconds(const Processor& processor, KvFormat kv_dtype, double kv_bytes,
                                double flops);
/// Seconds of `flops` operations of prefill attention (launch not included).
double prefill_attention_seconds(const Processor& processor, KvFormat kv_dtype, double flops);

}  // namespace sluice::policy
