// sluice doctor: what this machine has and what is missing.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "io/async/disk_probe.h"
#include "io/async/file_engine.h"
#include "io/async/offload_file.h"
#include "kernels/cpu/isa.h"
#include "kernels/linear.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/processor_name.h"
#include "src/device/memory_limit.h"
#include "tools/command.h"
#include "tools/flag_words.h"
#include "tools/output.h"
#ifdef SLUICE_HAVE_CUDA
#include "tools/cuda_report.h"
#endif

namespace sluice::tools {

namespace {
struct DoctorFlags {
  std::string folder;
  bool json = false, no_speed = false;
};

struct Finding {
  std::string what;
  bool is_good;
  std::string text;
};

Finding check_io(const std::string& folder) {
  std::string log;
  io::FileEngineOptions options;
  options.log = [&](std::string_view line) { log += std::string(line) + "; "; };
  const auto engine = io::make_file_engine(options);
  const std::string name = engine->describe();
  return {"file engine", name.starts_with("io_uring"), log + name + " (" + folder + ")"};
}

Finding check_offload(const std::string& folder) {
  const io::OffloadFile file = io::OffloadFile::create(folder, kMiB, "doctor");
  return {"O_DIRECT", file.is_direct() && !file.is_in_memory(),
          file.is_in_memory() ? folder + " is memory, not disk: choose another --offload-dir"
          : file.is_direct()
              ? "direct I/O in " + folder
              : folder + " refuses direct I/O: reads and writes go through the page cache"};
}

Finding check_speed(const std::string& folder) {
  constexpr int64_t kBytes = kGiB;
  struct statvfs space {};
  if (statvfs(folder.c_str(), &space) != 0 ||
      static_cast<int64_t>(space.f_bavail * space.f_frsize) < 2 * kBytes)
    return {"disk speed", false, folder + ": less than 2GiB free, not measured"};
  const double rate = io::probe_write_rate(folder, kBytes, 4 * kMiB, 16);
  return {"disk speed", true,
          fmt::format(
              "writes {} in {} (reads: sluice bench MODEL prints a probe of the model's own files)",
              format_rate(rate), folder)};
}

std::vector<Finding> examine(const DoctorFlags& flags) {
  std::vector<Finding> findings;
  const auto guarded = [&](const char* what, auto&& check) {
    try {
      findings.push_back(check());
    } catch (const Error& error) {
      findings.push_back({what, false, in_flags(error.what())});
    }
  };
  findings.push_back(
      {"CPU", kernels::detected_isa() != kernels::Isa::kGeneric,
       fmt::format("{}, {} processors, {}; bf16 products {}", processor_name(),
                   std::thread::hardware_concurrency(), kernels::isa_name(kernels::detected_isa()),
                   kernels::bf16_compute_supported() ? "yes" : "no (f32 instead)")});
  const MemoryLimit limit = memory_limit();
  const std::string driver = memory_driver();
  findings.push_back({"memory", true,
                      fmt::format("{} by the {}, {} available{}", format_bytes(limit.total_bytes),
                                  limit.source, format_bytes(limit.available_bytes),
                                  driver.empty() ? ""
                                                 : "; " + driver +
                                                       " may give or take some while "
                                                       "programs run: say what to count on with "
                                                       "--cpu-mem")});
  rlimit lock{};
  getrlimit(RLIMIT_MEMLOCK, &lock);
  findings.push_back({"memlock", lock.rlim_cur == RLIM_INFINITY || lock.rlim_cur >= 64u * kMiB,
                      lock.rlim_cur == RLIM_INFINITY
                          ? "unlimited"
                          : format_bytes(static_cast<int64_t>(lock.rlim_cur)) +
                                " may be pinned (registered buffers fall back to plain ones)"});
  std::ifstream huge("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string mode;
  std::getline(huge, mode);
  findings.push_back({"huge pages", mode.find("[never]") == std::string::npos && !mode.empty(),
                      mode.empty() ? "not known" : "transparent: " + mode});
  guarded("file engine", [&] { return check_io(flags.folder); });
  guarded("O_DIRECT", [&] { return check_offload(flags.folder); });
  if (!flags.no_speed) guarded("disk speed", [&] { return check_speed(flags.folder); });
#ifdef SLUICE_HAVE_CUDA
  findings.push_back({"CUDA", true, in_flags(cuda_report())});
#else
  findings.push_back({"CUDA", true, "built without it: computing on the CPU"});
#endif
  return findings;
}

void run(DoctorFlags flags) {
  if (flags.folder.empty()) flags.folder = temporary_folder();
  const auto findings = examine(flags);
  if (flags.json) {
    auto json = nlohmann::ordered_json::object();
    for (const Finding& finding : findings)
      json[finding.what] = {{"ok", finding.is_good}, {"text", finding.text}};
    print_json(json);
    return;
  }
  for (const Finding& finding : findings)
    std::printf("%-4s %-12s %s\n", finding.is_good ? "ok" : "look", finding.what.c_str(),
                finding.text.c_str());
}
}  // namespace

Command add_doctor(CLI::App& program) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* parser = program.add_subcommand("doctor", "what this machine has, and what is missing");
  parser->add_option(
      "--dir", flags->folder,
      "folder to check for models and offload files (default: the temporary folder)");
  parser->add_flag("--no-speed", flags->no_speed, "leave out the disk's speed");
  parser->add_flag("--json", flags->json, "one JSON object on standard output");
  return {parser, [flags](std::stop_token) { run(*flags); }};
}

}  // namespace sluice::tools
