// sluice profile: measures this machine, shows profiles.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "src/app/gpu.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/profile/profile_cache.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct ProfileFlags {
  std::string offload_dir, output, show;
  int threads = 0;
  int gpu = -1;
  bool quick = false, disk_only = false, json = false, list = false, no_cache = false;
};

const char* source_name(policy::FigureSource source) {
  switch (source) {
    case policy::FigureSource::kMeasured: return "measured";
    case policy::FigureSource::kPublished: return "published";
    case policy::FigureSource::kDatasheet: return "data sheet";
    case policy::FigureSource::kEstimate: return "estimate";
  }
  return "";
}

void row(const std::string& what, const std::string& value, const policy::Figure& figure) {
  std::string spread =
      figure.spread > 0 ? fmt::format("+-{:.0f}%", 50 * figure.spread) : std::string();
  std::printf("  %-42s %14s  %-6s %s%s%s\n", what.c_str(), value.c_str(), spread.c_str(),
              source_name(figure.source), figure.note.empty() ? "" : ": ", figure.note.c_str());
}

std::string flops_text(double flops) {
  return flops >= 1e12 ? fmt::format("{:.2f} TFLOP/s", flops / 1e12)
                       : fmt::format("{:.1f} GFLOP/s", flops / 1e9);
}

void print_processor(const char* which, const policy::Processor& processor) {
  std::printf("%s: %s\n", which, processor.name.c_str());
  if (!processor.conditions.empty()) std::printf("  at %s\n", processor.conditions.c_str());
  row("memory read", format_rate(processor.memory_read.value), processor.memory_read);
  for (const policy::MatmulRate& rate : processor.matmul)
    row(fmt::format("product {}{} m={} {}x{}", format_name(rate.weights),
                    rate.eight_bit_activations ? ", 8-bit x" : "", rate.m, rate.n, rate.k),
        flops_text(rate.flops.value), rate.flops);
  for (const policy::AttentionRate& rate : processor.attention) {
    row(fmt::format("attention {} decode", kv_format_name(rate.kv_dtype)),
        format_rate(rate.decode_bytes.value), rate.decode_bytes);
    row(fmt::format("attention {} decode, shared", kv_format_name(rate.kv_dtype)),
        flops_text(rate.decode_flops.value), rate.decode_flops);
    row(fmt::format("attention {} prefill", kv_format_name(rate.kv_dtype)),
        flops_text(rate.prefill_flops.value), rate.prefill_flops);
  }
  row("launch", format_seconds(processor.launch_seconds.value), processor.launch_seconds);
}

void print_link(const policy::Link& link) {
  std::printf("link\n");
  row("host to device", format_rate(link.to_device.value), link.to_device);
  row("device to host", format_rate(link.to_host.value), link.to_host);
  row("share of each when both run", fmt::format("{:.2f}", link.both_share.value), link.both_share);
  row("one copy", format_seconds(link.latency_seconds.value), link.latency_seconds);
}

void print_profile(const policy::Profile& profile) {
  std::printf("%s\n%s%s%s\n", profile.name.c_str(), profile.description.c_str(),
              profile.date.empty() ? "" : ", ", profile.date.c_str());
  if (profile.device) {
    std::printf("device memory %s, ", format_bytes(profile.device_bytes).c_str());
  }
  std::printf(
      "host memory %s, %s\n", format_bytes(profile.host_bytes).c_str(),
      profile.disks.empty() ? "no disk" : ("disk " + format_bytes(profile.disk_bytes)).c_str());
  if (profile.device) {
    print_processor("device", *profile.device);
    print_link(profile.link);
  }
  for (size_t i = 0; i < profile.more_devices.size(); ++i) {
    const policy::OtherDevice& other = profile.more_devices[i];
    std::printf("device %zu, memory %s\n", i + 1, format_bytes(other.bytes).c_str());
    print_processor("device", other.processor);
    print_link(other.link);
  }
  print_processor("host", profile.host);
  for (const policy::ThreadRate& rate : profile.host_memory)
    row(fmt::format("memory read, {} threads", rate.threads), format_rate(rate.memory_read.value),
        rate.memory_read);
  for (const policy::Disk& disk : profile.disks) {
    std::printf("disk %s\n", disk.path.c_str());
    row("read", format_rate(disk.read.value), disk.read);
    row("write", format_rate(disk.write.value), disk.write);
    row("read while writing", format_rate(disk.mixed_read.value), disk.mixed_read);
    row("write while reading", format_rate(disk.mixed_write.value), disk.mixed_write);
    row("read while computing", format_rate(disk.busy_read.value), disk.busy_read);
    row("one read", format_seconds(disk.latency_seconds.value), disk.latency_seconds);
  }
}

policy::Profile measure(const ProfileFlags& flags, std::stop_token cancel) {
  MeasureOptions options;
  options.offload_dir = flags.offload_dir;
  options.threads = flags.threads;
  options.quick = flags.quick;
  options.cancel = std::move(cancel);
  std::optional<Waiting> part;
  options.progress = [&part](std::string_view what) {
    part.reset();
    tell(fmt::format("measuring {}", what));
    part.emplace(fmt::format("measuring {}", what));
  };
  const auto path = profile_cache_path(flags.offload_dir, flags.threads);
  std::optional<policy::Profile> kept;
  if (flags.disk_only) {
    kept = path.empty() ? std::nullopt : load_cached_profile(path, {});
    if (!kept)
      throw Error(ErrorKind::kUser, "--disk-only: there is no kept profile of this machine",
                  "measure all of it once: sluice profile");
    options.only_disk_of = &*kept;
  }
  policy::Profile profile = measure_profile(options);
  part.reset();
  if (flags.no_cache) return profile;
  if (path.empty()) {
    std::fprintf(stderr, "sluice: not kept: neither XDG_CACHE_HOME nor HOME is set\n");
    return profile;
  }
  store_profile(profile, path);
  std::fprintf(stderr, "sluice: kept in %s\n", path.c_str());
  return profile;
}

void run_profile(const ProfileFlags& flags, std::stop_token cancel) {
  if (flags.list) {
    for (const std::string& name : policy::shipped_profile_names()) {
      const policy::Profile profile = *policy::shipped_profile(name);
      std::printf("%-12s %s\n", name.c_str(), profile.description.c_str());
    }
    return;
  }
  const std::shared_ptr<Backend> gpu = flags.gpu >= 0 ? app::open_gpu(flags.gpu, 0) : nullptr;
  policy::Profile profile =
      flags.show.empty() ? measure(flags, std::move(cancel)) : find_profile(flags.show);
  // The kept profile is the machine's without it: each run measures the GPU that it computes on.
  if (gpu) profile = app::measure_with_gpu(profile, *gpu);
  const std::string json = policy::profile_to_json(profile);
  if (!flags.output.empty()) write_file(flags.output, json);
  if (flags.json)
    std::fputs(json.c_str(), stdout);
  else
    print_profile(profile);
}
}  // namespace

Command add_profile(CLI::App& program) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* parser = program.add_subcommand(
      "profile", "measure this machine (disk, memory, products, attention) and keep the figures");
  parser
      ->add_option("--offload-dir", flags->offload_dir,
                   "folder of the disk to measure (default: the temporary folder)")
      ->envname("SLUICE_OFFLOAD_DIR");
  parser->add_option("-t,--threads", flags->threads, "compute threads (default: all)")
      ->envname("SLUICE_THREADS")
      ->check(CLI::NonNegativeNumber);
  parser
      ->add_option("--gpu", flags->gpu,
                   "measure this GPU and its link too, from 0 (with --show FILE: only it)")
      ->check(CLI::NonNegativeNumber);
  parser->add_flag("--quick", flags->quick, "ten seconds rather than a minute");
  parser->add_flag("--disk-only", flags->disk_only,
                   "measure the disk again (shared ones drift) and keep the rest");
  parser->add_option("-o,--output", flags->output, "write the JSON to this file too");
  parser->add_option("--show", flags->show, "print a shipped profile (--list) or a file instead");
  parser->add_flag("--list", flags->list, "names of the shipped profiles");
  parser->add_flag("--no-cache", flags->no_cache, "don't keep the result");
  parser->add_flag("--json", flags->json, "the profile's JSON on standard output");
  return {parser, [flags](std::stop_token cancel) { run_profile(*flags, std::move(cancel)); }};
}

}  // namespace sluice::tools
