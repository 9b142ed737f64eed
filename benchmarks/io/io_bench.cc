// The file engine beside the raw probe of the same file: one JSON object per line, per engine,
// request size and bytes in flight. Makes a scratch file, which vanishes, unless it is given one.
// Probe and engine take turns, because the rate of a shared disk drifts.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/async/disk_probe.h"
#include "io/async/file_engine.h"
#include "io/async/offload_file.h"
#include "src/base/arena.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace {

using sluice::format_bytes;
using sluice::kMiB;
using sluice::io::FileEngine;
using sluice::io::FileEngineOptions;
using sluice::io::FileId;
using sluice::io::IoMode;

struct Job {
  std::string path;
  int64_t bytes = 0;
  int repeats = 3;
  bool registers = true;
};

double seconds_of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Fills `path` with `bytes` that are not zeros.
void make_file(const std::string& path, int64_t bytes, sluice::Arena& arena) {
  sluice::io::OwnedFd fd(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600));
  if (!fd)
    throw sluice::Error(sluice::ErrorKind::kFile, "can't make " + path, "choose another --file");
  const auto engine = sluice::io::make_file_engine({});
  const FileId file = engine->adopt(std::move(fd), path, true);
  const sluice::Buffer buffer = arena.allocate(64 * kMiB, "file contents");
  uint64_t state = 88172645463325252ULL;
  for (int64_t i = 0; i < buffer.size() / 8; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    buffer.as<uint64_t>()[i] = state;
  }
  for (int64_t offset = 0; offset < bytes; offset += buffer.size()) {
    const int64_t length = std::min(buffer.size(), bytes - offset);
    const sluice::io::Extent extent{file, offset, length, buffer.data()};
    engine->write_now({&extent, 1});
  }
}

struct Rate {
  double bytes_per_second;
  double core_share;  // processor time of the whole program by wall time; 1: one core
};

/// Reads the job's bytes as an engine's user does: some layers ahead, each a group of its own.
Rate engine_rate(const Job& job, const FileEngineOptions& options, sluice::Arena& arena) {
  struct Group {
    std::mutex mutex;
    std::condition_variable changed;
    std::exception_ptr error;
    bool is_free = true;
  };
  constexpr int64_t kGroupBytes = 128 * kMiB;
  constexpr int64_t kGroupsAhead = 3;
  std::vector<Group> ring(kGroupsAhead);
  const sluice::Buffer buffer = arena.allocate(kGroupBytes * kGroupsAhead, "read ring");
  std::fill_n(buffer.data(), buffer.size(), std::byte{1});
  const auto engine =
      sluice::io::make_file_engine(options);  // last: gone before what it reads into
  const FileId file = engine->open_for_read(job.path);
  if (job.registers) engine->register_memory(buffer.span());
  const auto wait = [](Group& group) {
    std::unique_lock lock(group.mutex);
    group.changed.wait(lock, [&] { return group.is_free; });
    if (group.error) std::rethrow_exception(group.error);
  };
  const double busy_before = seconds_of_process();
  const auto start = std::chrono::steady_clock::now();
  const int64_t groups = job.bytes / kGroupBytes;
  for (int64_t i = 0; i < groups; ++i) {
    Group& group = ring[static_cast<size_t>(i % kGroupsAhead)];
    wait(group);
    group.is_free = false;
    const sluice::io::Extent extent{file, i * kGroupBytes, kGroupBytes,
                                    buffer.data() + i % kGroupsAhead * kGroupBytes};
    engine->read({&extent, 1}, [&group](std::exception_ptr error) {
      const std::lock_guard lock(group.mutex);
      group.error = std::move(error);
      group.is_free = true;
      group.changed.notify_one();
    });
  }
  for (Group& group : ring) wait(group);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double busy = seconds_of_process() - busy_before;
  if (job.registers) engine->unregister_memory(buffer.span());
  return {static_cast<double>(groups * kGroupBytes) / seconds.count(), busy / seconds.count()};
}

void measure(const Job& job, const FileEngineOptions& options, sluice::Arena& arena) {
  const int depth = static_cast<int>(
      std::clamp<int64_t>(options.bytes_in_flight / options.request_bytes, 1, 1024));
  std::vector<double> probe;
  std::vector<double> engine;
  std::vector<double> share;
  for (int i = 0; i < job.repeats; ++i) {
    probe.push_back(sluice::io::probe_read_rate(job.path, job.bytes, options.request_bytes, depth));
    const Rate rate = engine_rate(job, options, arena);
    engine.push_back(rate.bytes_per_second);
    share.push_back(rate.core_share);
  }
  const auto gigabytes = [](double rate) { return std::round(rate / 1e7) / 100; };
  const auto all = [&](const std::vector<double>& rates) {
    nlohmann::json list = nlohmann::json::array();
    for (const double rate : rates) list.push_back(gigabytes(rate));
    return list;
  };
  const nlohmann::ordered_json line{{"engine", options.mode == IoMode::kPread ? "pread" : "uring"},
                                    {"request", format_bytes(options.request_bytes)},
                                    {"in_flight", format_bytes(options.bytes_in_flight)},
                                    {"probe_GBps", all(probe)},
                                    {"engine_GBps", all(engine)},
                                    {"probe_GBps_median", gigabytes(median(probe))},
                                    {"engine_GBps_median", gigabytes(median(engine))},
                                    {"engine_core_share", std::round(median(share) * 1000) / 1000}};
  std::cout << line.dump() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Read rate of the file engine beside a raw probe, as JSON lines"};
  Job job;
  std::string size = "4GiB";
  std::vector<std::string> requests{"256KiB", "1MiB", "4MiB", "16MiB"};
  std::vector<std::string> in_flight{"16MiB", "64MiB", "256MiB"};
  std::vector<std::string> engines{"uring"};
  bool is_unregistered = false;
  app.add_option("--file", job.path, "file to read; made (and removed) when it is not there")
      ->required();
  app.add_option("--bytes", size, "bytes to read in each run");
  app.add_option("--requests", requests, "request sizes")->delimiter(',');
  app.add_option("--in-flight", in_flight, "bytes in flight")->delimiter(',');
  app.add_option("--engines", engines, "uring, pread")->delimiter(',');
  app.add_option("--repeats", job.repeats, "runs of each, of which the median counts")
      ->check(CLI::Range(1, 99));
  app.add_flag("--unregistered", is_unregistered, "read into memory that is not registered");
  CLI11_PARSE(app, argc, argv);
  try {
    job.bytes = sluice::parse_bytes(size, "--bytes");
    job.registers = !is_unregistered;
    sluice::Arena arena("host", 1 * sluice::kGiB);
    struct stat status {};
    const bool is_ours = ::stat(job.path.c_str(), &status) != 0;
    if (is_ours) make_file(job.path, job.bytes, arena);
    for (const std::string& engine : engines) {
      for (const std::string& request : requests) {
        for (const std::string& bytes : in_flight) {
          FileEngineOptions options;
          options.mode = engine == "pread" ? IoMode::kPread : IoMode::kUring;
          options.request_bytes = sluice::parse_bytes(request, "--requests");
          options.bytes_in_flight = sluice::parse_bytes(bytes, "--in-flight");
          if (options.bytes_in_flight >= options.request_bytes) measure(job, options, arena);
        }
      }
    }
    if (is_ours) ::unlink(job.path.c_str());
  } catch (const sluice::Error& error) {
    std::cerr << "sluice_io_bench: " << error.what() << "\n";
    return sluice::exit_code(error.kind());
  }
  return 0;
}
