#include "src/profile/learn.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/base/bytes.h"
#include "src/device/memory_probe.h"

namespace sluice {

namespace {
using policy::AttentionRate;
using policy::AttentionTimes;
using policy::Figure;
using policy::MatmulRate;
using policy::Processor;
using policy::ProductTimes;
using policy::Profile;

constexpr double kEnoughSeconds = 0.25;  // of a class: half of what it says is believed
// A rate that is further off than this was measured beside something else, and so were its
// neighbours; nearer, the difference is this size's own.
constexpr double kOwnDifference = 1.25;
constexpr double kSameSize = 4;           // times as many elements of W, or fewer
constexpr int64_t kLargePart = 4 * kMiB;  // smaller transfers wait rather than move
constexpr double kSaturated = 0.7;  // share of a run in which a lane was busy, to be its limit
constexpr double kMostDelay = 0.4;  // share of computing that reads from disk can have delayed

class Learner {
 public:
  Learner(const Profile& profile, const RunFindings& findings, Trust trust)
      : findings_(findings), trust_(trust) {
    out_.profile = profile;
  }

  Lesson result() {
    const double delayed = take_delay();
    launch();
    memory(delayed);
    products(delayed);
    for (const AttentionTimes& times : findings_.kernels.attention) attention(times, delayed);
    disk(Lane::kDiskRead);
    disk(Lane::kDiskWrite);
    return std::move(out_);
  }

 private:
  // How far a rate that was found `ratio` times the profile's, for so long, moves: a factor.
  double step(double ratio, double seconds) const {
    if (!(ratio > 0) || !std::isfinite(ratio)) return 1;
    double weight = trust_ == Trust::kAll ? 1 : seconds / (seconds + kEnoughSeconds);
    if (ratio < 1 && !findings_.is_quiet && trust_ != Trust::kAll) weight = 0;
    return std::clamp(std::pow(ratio, weight), 1 / kMostChange, kMostChange);
  }

  void scale(Figure& figure, double factor, const std::string& what) {
    if (factor == 1) return;
    figure.value *= factor;
    figure.source = policy::FigureSource::kMeasured;
    figure.note = "with what runs found";
    const double change = std::max(factor, 1 / factor);
    if (change > out_.most_change) {
      out_.most_change = change;
      out_.of = what;
    }
  }

  // The share of the kernels' time that reads from disk took of the cores, which the simulator
  // counts by itself. A delay that can't be is cut.
  double take_delay() {
    const auto found = findings_.transfers.find(Lane::kDiskRead);
    if (found == findings_.transfers.end() || findings_.compute_seconds <= 0) return 0;
    const auto bytes = static_cast<double>(found->second.bytes);
    Figure& delay = out_.profile.read_delay;
    const double share = bytes * delay.value / findings_.compute_seconds;
    if (share <= kMostDelay) return share;
    scale(delay, std::max(kMostDelay / share, 1 / kMostChange), "the delay by reads");
    return kMostDelay;
  }

  // No call takes less than a launch.
  void launch() {
    double least = std::numeric_limits<double>::infinity();
    for (const ProductTimes& one : findings_.kernels.products)
      if (one.calls > 0) least = std::min(least, one.seconds / static_cast<double>(one.calls));
    Figure& figure = out_.profile.host.launch_seconds;
    if (figure.value > least)
      scale(figure, std::max(least / figure.value, 1 / kMostChange), "starting a product");
  }

  double call_seconds(const ProductTimes& one, double delayed) const {
    const double call = one.seconds / static_cast<double>(one.calls) * (1 - delayed);
    return std::max(call - out_.profile.host.launch_seconds.value, 0.2 * call);
  }

  // Products that read their weights faster than memory is said to be read.
  void memory(double delayed) {
    if (findings_.weight_bytes < kBeyondCaches) return;
    double best = 0;
    double seconds = 0;
    for (const ProductTimes& one : findings_.kernels.products) {
      if (one.calls == 0) continue;
      const double rate =
          static_cast<double>(one.weights.bytes(one.n, one.k)) / call_seconds(one, delayed);
      // Of many sizes the fastest by some luck: one that has been seen for a while.
      if (one.seconds < kEnoughSeconds / 2 || rate <= best) continue;
      best = rate;
      seconds = one.seconds;
    }
    Figure& figure = out_.profile.host.memory_read;
    if (best <= figure.value) return;
    const double factor = step(best / figure.value, seconds);
    for (policy::ThreadRate& row : out_.profile.host_memory)
      scale(row.memory_read, factor, "memory");
    scale(figure, factor, "memory");
  }

  static bool is_same_kind(const MatmulRate& row, const ProductTimes& one) {
    return row.weights.encoding == one.weights.encoding &&
           (one.weights.is_quantised() || row.weights.dtype == one.weights.dtype) &&
           row.eight_bit_activations == one.eight_bit_activations;
  }
  static double elements(int64_t n, int64_t k) {
    return static_cast<double>(n) * static_cast<double>(k);
  }

  // Of a kind that the table lacks (most of GGUF's): what it was planned with, for its own size.
  std::pair<int64_t, int64_t> add_kind(const ProductTimes& one) {
    constexpr int64_t kMostRows = 512;
    Processor& host = out_.profile.host;
    std::vector<MatmulRate> rows;
    for (int64_t m = 1; m <= kMostRows; m *= 2) {
      const double seconds =
          policy::matmul_seconds(host, one.weights, one.eight_bit_activations, m, one.n, one.k) -
          host.launch_seconds.value;
      MatmulRate& row = rows.emplace_back();
      row = {one.weights, m, one.n, one.k, {}, one.eight_bit_activations};
      row.flops.value = 2 * static_cast<double>(m) * elements(one.n, one.k) / seconds;
      row.flops.source = policy::FigureSource::kEstimate;
    }
    host.matmul.insert(host.matmul.end(), rows.begin(), rows.end());
    return {one.n, one.k};
  }

  // The size of a kind's table that products like `one` are looked up in: the nearest, or a new one
  // as the nearest has it.
  std::pair<int64_t, int64_t> size_of(const ProductTimes& one) {
    std::vector<MatmulRate>& table = out_.profile.host.matmul;
    const double wanted = elements(one.n, one.k);
    const auto distance = [&](const MatmulRate& row) {
      return std::abs(std::log(elements(row.n, row.k) / wanted));
    };
    const MatmulRate* nearest = nullptr;
    for (const MatmulRate& row : table)
      if (is_same_kind(row, one) && (!nearest || distance(row) < distance(*nearest)))
        nearest = &row;
    if (!nearest) return add_kind(one);
    const std::pair size{nearest->n, nearest->k};
    if (distance(*nearest) <= std::log(kSameSize)) return size;
    std::vector<MatmulRate> copies;
    for (const MatmulRate& row : table)
      if (is_same_kind(row, one) && row.n == size.first && row.k == size.second)
        copies.push_back(row);
    for (MatmulRate& row : copies) {
      row.n = one.n;
      row.k = one.k;
    }
    table.insert(table.end(), copies.begin(), copies.end());
    return std::pair{one.n, one.k};
  }

  // What was found of one size's rate at some number of rows.
  struct Found {
    double log_m = 0;
    double log_ratio = 0;  // of the rate found to the profile's, by seconds
    double seconds = 0;
  };
  struct Size {
    ProductTimes kind;  // n and k as the table has them
    std::vector<Found> found;
  };

  void products(double delayed) {
    std::vector<Size> sizes;
    for (const ProductTimes& one : findings_.kernels.products) {
      if (one.calls == 0 || one.seconds <= 0) continue;
      ProductTimes kind = one;
      std::tie(kind.n, kind.k) = size_of(one);
      const auto of_kind = std::find_if(sizes.begin(), sizes.end(), [&](const Size& other) {
        return other.kind.n == kind.n && other.kind.k == kind.k &&
               other.kind.weights.encoding == kind.weights.encoding &&
               other.kind.weights.dtype == kind.weights.dtype &&
               other.kind.eight_bit_activations == kind.eight_bit_activations;
      });
      Size& at = of_kind == sizes.end() ? sizes.emplace_back(Size{kind, {}}) : *of_kind;
      keep(at.found, one, delayed);
    }
    for (Size& size : sizes) take(size);
  }

  void keep(std::vector<Found>& all, const ProductTimes& one, double delayed) const {
    const Processor& host = out_.profile.host;
    const double expected =
        policy::matmul_seconds(host, one.weights, one.eight_bit_activations, one.m, one.n, one.k) -
        host.launch_seconds.value;
    const double log_ratio = std::log(expected / call_seconds(one, delayed));
    const double log_m = std::log2(static_cast<double>(one.m));
    for (Found& found : all)
      if (std::abs(found.log_m - log_m) < 0.25) {
        const double sum = found.seconds + one.seconds;
        found.log_ratio = (found.log_ratio * found.seconds + log_ratio * one.seconds) / sum;
        found.seconds = sum;
        return;
      }
    all.push_back({log_m, log_ratio, one.seconds});
  }

  // How far the row for 2^log_m rows moves, from what was found around it.
  double factor_at(const std::vector<Found>& found, double log_m) const {
    const Found* below = nullptr;
    const Found* above = nullptr;
    for (const Found& one : found) {
      if (one.log_m <= log_m && (!below || one.log_m > below->log_m)) below = &one;
      if (one.log_m >= log_m && (!above || one.log_m < above->log_m)) above = &one;
    }
    const auto own = [&](const Found& one) { return step(std::exp(one.log_ratio), one.seconds); };
    const auto shared = [&](const Found& one) {
      const double factor = own(one);
      if (factor > kOwnDifference) return factor / kOwnDifference;
      return factor < 1 / kOwnDifference ? factor * kOwnDifference : 1.0;
    };
    constexpr double kNear = 0.6;  // of a doubling of the rows
    const auto distance = [&](const Found* one) {
      return one ? std::abs(one->log_m - log_m) : std::numeric_limits<double>::infinity();
    };
    const Found* nearest = distance(below) <= distance(above) ? below : above;
    if (distance(nearest) <= kNear) return own(*nearest);
    if (!below || !above) return shared(*nearest);
    const double t = distance(below) / (distance(below) + distance(above));
    return std::exp((1 - t) * std::log(shared(*below)) + t * std::log(shared(*above)));
  }

  void take(const Size& size) {
    std::vector<MatmulRate*> rows;
    for (MatmulRate& row : out_.profile.host.matmul)
      if (is_same_kind(row, size.kind) && row.n == size.kind.n && row.k == size.kind.k)
        rows.push_back(&row);
    std::sort(rows.begin(), rows.end(),
              [](const MatmulRate* a, const MatmulRate* b) { return a->m < b->m; });
    for (MatmulRate* row : rows)
      scale(row->flops, factor_at(size.found, std::log2(static_cast<double>(row->m))),
            fmt::format("products of {}, {} rows", format_name(row->weights), row->m));
    // More rows have no lower rate: a row that says so was measured beside something else.
    constexpr double kAllowed = 0.85;  // kernels change with the number of rows
    double most = 0;
    for (MatmulRate* row : rows) {
      const double rate = row->flops.value;
      row->flops.value = std::max(rate, kAllowed * most);
      most = std::max(most, rate);
    }
  }

  void attention(const AttentionTimes& times, double delayed) {
    std::vector<AttentionRate>& table = out_.profile.host.attention;
    const auto row = std::find_if(table.begin(), table.end(), [&](const AttentionRate& one) {
      return one.kv_dtype == times.kv_dtype;
    });
    if (row == table.end() || times.seconds <= 0) return;
    const double seconds = times.seconds * (1 - delayed);
    const std::string of = fmt::format("attention over {}", kv_format_name(times.kv_dtype));
    if (times.is_prefill) {
      scale(row->prefill_flops,
            step(times.flops / seconds / row->prefill_flops.value, times.seconds),
            of + " in prompts");
      return;
    }
    // Whichever rate said that it takes so long, and both where both say longer.
    const double by_bytes = times.bytes / row->decode_bytes.value / seconds;
    const double by_flops = times.flops / row->decode_flops.value / seconds;
    const double limit = std::max(by_bytes, by_flops);
    if (by_bytes == limit || by_bytes > 1)
      scale(row->decode_bytes, step(by_bytes, times.seconds), of);
    if (by_flops == limit || by_flops > 1)
      scale(row->decode_flops, step(by_flops, times.seconds), of);
  }

  void disk(Lane lane) {
    const auto found = findings_.transfers.find(lane);
    if (found == findings_.transfers.end() || out_.profile.disks.empty()) return;
    const LaneTransfers& moved = found->second;
    if (moved.tasks == 0 || moved.busy_seconds <= 0 || moved.bytes / moved.tasks < kLargePart)
      return;
    const bool is_read = lane == Lane::kDiskRead;
    const policy::Disk& first = out_.profile.disks.front();
    // Beside products the disk reads as busy_read says.
    const double computing =
        std::min(1.0, findings_.compute_seconds / std::max(findings_.wall_seconds, 1e-9));
    const double beside = first.busy_read.value / first.read.value;
    const double expected = is_read
                                ? out_.profile.disk_read() * (1 - computing + computing * beside)
                                : out_.profile.disk_write();
    const double ratio =
        static_cast<double>(moved.bytes) / moved.busy_seconds / std::max(expected, 1e-9);
    // A lane with time to spare says how fast the disk is at least.
    const bool is_limit = moved.busy_seconds > kSaturated * findings_.wall_seconds;
    if (ratio < 1 && !is_limit && trust_ != Trust::kAll) return;
    const double factor = step(ratio, moved.busy_seconds);
    for (policy::Disk& disk : out_.profile.disks) {
      const std::string of = is_read ? "the disk's reads" : "the disk's writes";
      scale(is_read ? disk.read : disk.write, factor, of);
      scale(is_read ? disk.mixed_read : disk.mixed_write, factor, of);
      if (is_read) scale(disk.busy_read, factor, of);
    }
  }

  const RunFindings& findings_;
  Trust trust_;
  Lesson out_;
};
}  // namespace

Lesson learn(const Profile& profile, const RunFindings& findings, Trust trust) {
  return Learner(profile, findings, trust).result();
}

}  // namespace sluice
