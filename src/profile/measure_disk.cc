// The disk's rates at the engine's request size and depth: written, read, and both at once.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>

#include "io/async/disk_probe.h"
#include "io/async/file_engine.h"
#include "src/base/arena.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/profile/measure_delay.h"
#include "src/profile/measure_parts.h"

namespace sluice {

namespace {
constexpr int64_t kRequestBytes = kMiB;
constexpr int64_t kMostInFlight = 64 * kMiB;
constexpr int64_t kPageRequest = 16 * kKiB;  // about a KV page of a layer
constexpr int64_t kMostPageBytes = 32 * kMiB;
constexpr int64_t kLeastFile = 16 * kMiB;
constexpr double kMostSeconds = 0.8;  // of one sample

// What a request of a KV page takes besides its bytes at the large requests' `rate`.
policy::Figure request_seconds(std::vector<double> rates, double rate) {
  for (double& one : rates)
    one = std::max(0.0, static_cast<double>(kPageRequest) * (1 / one - 1 / rate));
  return median_of(rates,
                   "16 KiB requests, 64 in flight, less their bytes at the large ones' rate");
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs stats {};
  if (statvfs(folder.c_str(), &stats) != 0)
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", folder, std::strerror(errno)),
                "give `offload_dir` a folder that is there");
  return static_cast<int64_t>(stats.f_bavail) * static_cast<int64_t>(stats.f_frsize);
}

int64_t file_bytes(const std::string& folder, int64_t wanted, const MeasureLimits& limits) {
  int64_t bytes = std::min(wanted, free_bytes(folder) / 4);
  // Bytes of a file on tmpfs are memory.
  if (io::OffloadFile::create(folder, 0, "a disk to measure").is_in_memory())
    bytes = std::min(bytes, limits.memory_bytes / 2);
  bytes = round_down(bytes, 2 * kMiB);
  if (bytes < std::min(kLeastFile, limits.memory_bytes / 2))
    throw Error(ErrorKind::kResource,
                fmt::format("{} has too little free space to measure the disk", folder),
                "free 64MiB, or give `offload_dir` another folder");
  return std::max(bytes, 2 * kMiB);
}
}  // namespace

DiskMeasurement::DiskMeasurement(const std::string& folder, int64_t wanted_bytes,
                                 const MeasureLimits& limits)
    : limits_(limits),
      folder_(folder),
      file_(io::OffloadFile::create(folder, file_bytes(folder, wanted_bytes, limits),
                                    "a disk to measure")),
      bytes_(file_.bytes()) {
  // What has never been written is not read from the disk.
  const io::ProbeResult done = io::probe_writes(file_, {.bytes = bytes_,
                                                        .depth = depth(kRequestBytes),
                                                        .most_seconds = 4 * kMostSeconds,
                                                        .cancel = limits_.cancel});
  written_ = round_down(done.bytes, kRequestBytes);
  SLUICE_ASSERT(written_ > 0, "a probe moves one request at least");
}

// Beside a second probe and the products' buffers.
int DiskMeasurement::depth(int64_t request_bytes) const {
  const int64_t in_flight = std::min(kMostInFlight, limits_.memory_bytes / 4);
  return static_cast<int>(std::clamp<int64_t>(in_flight / request_bytes, 1, 64));
}

double DiskMeasurement::read(int64_t bytes, int64_t request_bytes, double most_seconds) {
  return io::probe_reads(file_, {.bytes = std::min(bytes, written_),
                                 .request_bytes = request_bytes,
                                 .depth = depth(request_bytes),
                                 .most_seconds = most_seconds,
                                 .cancel = limits_.cancel})
      .rate();
}

double DiskMeasurement::write(int64_t bytes, int64_t request_bytes, double most_seconds) {
  return io::probe_writes(file_, {.bytes = std::min(bytes, written_),
                                  .request_bytes = request_bytes,
                                  .depth = depth(request_bytes),
                                  .most_seconds = most_seconds,
                                  .cancel = limits_.cancel})
      .rate();
}

// As somebody waits who can't go on without: through the engine, from thread to thread and back.
double DiskMeasurement::single_read_seconds() {
  constexpr int64_t kBytes = 4 * kKiB;
  constexpr int64_t kReads = 48;
  const std::unique_ptr<io::FileEngine> engine = io::make_file_engine({});
  const io::FileId file =
      engine->adopt(io::OwnedFd(dup(file_.fd())), file_.name(), file_.is_direct());
  Arena arena("profile", kMiB);
  const Buffer memory = arena.allocate(kBytes, "a read");
  const int64_t stride = std::max(round_down(written_ / kReads, kBytes), kBytes);
  std::vector<double> seconds;
  for (int64_t i = 0; i < kReads && (i + 1) * stride <= written_; ++i) {
    stop_if_asked(limits_.cancel);
    const auto start = std::chrono::steady_clock::now();
    const io::Extent extent{file, i * stride, kBytes, memory.data()};
    engine->read_now({&extent, 1});
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return median_of(seconds, "").value;
}

policy::Disk DiskMeasurement::measure() {
  policy::Disk out;
  out.path = folder_;
  std::vector<double> writes, reads, mixed_reads, mixed_writes, page_reads, page_writes, latencies;
  const int rounds = limits_.quick ? 2 : 3;
  for (int round = 0; round < rounds; ++round) {
    page_reads.push_back(read(kMostPageBytes, kPageRequest, kMostSeconds / 2));
    page_writes.push_back(write(kMostPageBytes, kPageRequest, kMostSeconds / 2));
    reads.push_back(read(bytes_, kRequestBytes, kMostSeconds));
    writes.push_back(write(bytes_, kRequestBytes, kMostSeconds));
    auto writing =
        std::async(std::launch::async, [&] { return write(bytes_, kRequestBytes, kMostSeconds); });
    mixed_reads.push_back(read(bytes_, kRequestBytes, kMostSeconds));
    mixed_writes.push_back(writing.get());
    latencies.push_back(single_read_seconds());
  }
  out.read = best_of(reads, "1 MiB requests, 64 in flight");
  out.write = best_of(writes, "1 MiB requests, 64 in flight");
  out.mixed_read = median_of(mixed_reads, "while writing");
  out.mixed_write = median_of(mixed_writes, "while reading");
  out.mixed_read.value = std::min(out.mixed_read.value, out.read.value);
  out.mixed_write.value = std::min(out.mixed_write.value, out.write.value);
  out.busy_read = out.read;  // until it is measured beside products
  out.read_request_seconds = request_seconds(page_reads, out.read.value);
  out.write_request_seconds = request_seconds(page_writes, out.write.value);
  out.latency_seconds = median_of(latencies, "4 KiB by the engine, each waited for");
  return out;
}

void DiskMeasurement::measure_beside_products(policy::Profile& out) {
  const Delay found = measure_delay(
      limits_,
      [&] {
        const io::ProbeResult done = io::probe_reads(file_, {.bytes = std::min(64 * kMiB, written_),
                                                             .request_bytes = kRequestBytes,
                                                             .depth = depth(kRequestBytes),
                                                             .most_seconds = 0.1,
                                                             .cancel = limits_.cancel});
        return done.bytes;
      },
      "products beside reads");
  out.read_delay = found.seconds_per_byte;
  policy::Disk& disk = out.disks.front();
  disk.busy_read = found.moved_rate;
  disk.busy_read.value = std::clamp(disk.busy_read.value, disk.read.value / 8, disk.read.value);
}

int64_t disk_space(const std::string& folder) { return free_bytes(folder); }

}  // namespace sluice
