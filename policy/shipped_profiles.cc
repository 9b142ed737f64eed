// Machines people ask about. Peaks come from the makers' data sheets; what a kernel reaches of them
// is an estimate with its factor in the note, until somebody measures that machine with `sluice
// profile`.
#include <fmt/format.h>

#include <array>

#include "policy/profile.h"
#include "src/base/bytes.h"

namespace sluice::policy {

namespace {
constexpr WeightFormat kF16{Encoding::kPlain, DType::kF16, 0};

struct HostRow {
  const char* what;
  int cores;
  double memory_gb;              // GB/s of the memory channels
  double tflops;                 // of all cores, 16-bit or f32, whichever the kernels use
  double disk_read, disk_write;  // GB/s
  double memory_gib, disk_gib;
};

struct GpuRow {
  const char* name;
  const char* title;
  double memory_gib;  // that CUDA lets programs have: less than the name says
  double memory_gb;   // GB/s
  double tflops;      // dense 16-bit with 32-bit sums
  double link_gb;     // GB/s one way, of the slot
  HostRow host;
};

constexpr HostRow kDesktop{
    "desktop, 8 cores, two DDR5-5600 channels, PCIe 4.0 NVMe", 8, 89.6, 1.0, 6.5, 5.0, 64, 1800};
constexpr HostRow kOldDesktop{
    "desktop, 8 cores, two DDR4-3200 channels, PCIe 3.0 NVMe", 8, 51.2, 0.8, 3.2, 2.5, 32, 900};
constexpr HostRow kServer{"server, 32 cores, eight DDR4-3200 channels, PCIe 4.0 NVMe",
                          32,
                          204.8,
                          4.0,
                          6.5,
                          4.0,
                          512,
                          3500};
constexpr HostRow kNewServer{"server, 48 cores with AMX, eight DDR5-4800 channels, PCIe 5.0 NVMe",
                             48,
                             307.2,
                             40.0,
                             12.0,
                             8.0,
                             1024,
                             7000};
constexpr HostRow kLaptop{
    "laptop, 8 cores, two DDR5-4800 channels, PCIe 4.0 NVMe", 8, 76.8, 0.7, 5.0, 3.5, 16, 900};

// Link: PCIe 3.0 x16 15.75, 4.0 x16 31.5, 4.0 x8 15.75, 5.0 x16 63 GB/s.
constexpr std::array kGpus{
    GpuRow{"rtx-3060", "GeForce RTX 3060 12 GB", 11.76, 360, 51, 31.5, kOldDesktop},
    GpuRow{"rtx-3090", "GeForce RTX 3090 24 GB", 23.69, 936, 71, 31.5, kDesktop},
    GpuRow{"rtx-4090", "GeForce RTX 4090 24 GB", 23.64, 1008, 165, 31.5, kDesktop},
    GpuRow{"rtx-5090", "GeForce RTX 5090 32 GB", 31.36, 1792, 210, 63, kDesktop},
    GpuRow{"l4", "L4 24 GB", 22.03, 300, 121, 31.5, kServer},
    GpuRow{"a5000", "RTX A5000 24 GB", 23.67, 768, 111, 31.5, kServer},
    GpuRow{"a10g", "A10G 24 GB", 22.06, 600, 70, 31.5, kServer},
    GpuRow{"a100", "A100 SXM 80 GB", 79.15, 2039, 312, 31.5, kServer},
    GpuRow{"h100", "H100 SXM 80 GB", 79.10, 3350, 989, 63, kNewServer},
    GpuRow{"h200", "H200 SXM 141 GB", 139.8, 4800, 989, 63, kNewServer},
    GpuRow{"laptop-8gb", "GeForce RTX 4060 Laptop 8 GB", 7.62, 256, 60, 15.75, kLaptop}};

Figure datasheet(double value, std::string note) {
  return {value, 0, FigureSource::kDatasheet, std::move(note)};
}
Figure published(double value, std::string note) {
  return {value, 0, FigureSource::kPublished, std::move(note)};
}
// A share of a peak that well-made kernels usually reach.
Figure share_of(double peak, double share, const char* what) {
  return {peak * share, 0, FigureSource::kEstimate,
          fmt::format("{:.0f}% of {}", 100 * share, what)};
}

// Rates of products rise with m until the units are full.
void add_products(Processor& processor, double peak, const char* what) {
  constexpr std::pair<int64_t, double> kShares[] = {{1, 0.02},   {8, 0.12},   {16, 0.22},
                                                    {32, 0.36},  {64, 0.5},   {128, 0.6},
                                                    {256, 0.68}, {512, 0.72}, {2048, 0.75}};
  for (const auto& [m, share] : kShares)
    processor.matmul.push_back({kF16, m, 8192, 8192, share_of(peak, share, what)});
}

Processor host_processor(const HostRow& row) {
  Processor host;
  host.name = row.what;
  host.threads = row.cores;
  const double memory = row.memory_gb * 1e9;
  host.memory_read = share_of(memory, 0.8, "the memory channels' peak");
  const double peak = row.tflops * 1e12;
  for (const int64_t m : {1, 16, 64, 512})
    host.matmul.push_back({kF16, m, 8192, 8192, share_of(peak, 0.7, "the cores' peak")});
  host.attention = {{DType::kF16, share_of(memory, 0.6, "the memory channels' peak"),
                     share_of(peak, 0.3, "the cores' peak"),
                     share_of(peak, 0.3, "the cores' peak")}};
  host.launch_seconds = {5e-6, 0, FigureSource::kEstimate, "a fork and join of threads"};
  host.synchronise_seconds = {5e-6, 0, FigureSource::kEstimate, "a wake-up"};
  return host;
}

Disk disk_of(const HostRow& row) {
  Disk disk;
  disk.read = datasheet(row.disk_read * 1e9, "typical NVMe of its kind");
  disk.write = datasheet(row.disk_write * 1e9, "typical NVMe of its kind");
  disk.mixed_read = share_of(row.disk_read * 1e9, 0.6, "the read rate");
  disk.mixed_write = share_of(row.disk_write * 1e9, 0.6, "the write rate");
  disk.busy_read = disk.read;
  disk.latency_seconds = {100e-6, 0, FigureSource::kEstimate, "flash read"};
  return disk;
}

Profile gpu_profile(const GpuRow& row) {
  Profile profile;
  profile.name = row.name;
  profile.description = fmt::format(
      "{} in a typical machine ({}). Data-sheet peaks and estimated shares of them: nobody has "
      "measured this one.",
      row.title, row.host.what);
  Processor device;
  device.name = row.title;
  const double memory = row.memory_gb * 1e9;
  device.memory_read = share_of(memory, 0.85, "the data sheet's memory bandwidth");
  add_products(device, row.tflops * 1e12, "the data sheet's dense 16-bit rate");
  device.attention = {{DType::kF16, share_of(memory, 0.75, "the data sheet's memory bandwidth"),
                       share_of(row.tflops * 1e12, 0.4, "the data sheet's dense 16-bit rate"),
                       share_of(row.tflops * 1e12, 0.1, "the data sheet's dense 16-bit rate")}};
  device.launch_seconds = {6e-6, 0, FigureSource::kEstimate, "a kernel launch"};
  device.synchronise_seconds = {15e-6, 0, FigureSource::kEstimate, "an event"};
  profile.device = device;
  profile.host = host_processor(row.host);
  const double link = row.link_gb * 1e9;
  profile.link = {share_of(link, 0.82, "the slot's rate, pinned memory"),
                  share_of(link, 0.82, "the slot's rate, pinned memory"),
                  {0.85, 0, FigureSource::kEstimate, "both directions meet in host memory"},
                  {10e-6, 0, FigureSource::kEstimate, "a copy's set-up"}};
  profile.disks = {disk_of(row.host)};
  profile.device_bytes = static_cast<int64_t>(row.memory_gib * static_cast<double>(kGiB));
  profile.host_bytes = static_cast<int64_t>(row.host.memory_gib * static_cast<double>(kGiB));
  profile.disk_bytes = static_cast<int64_t>(row.host.disk_gib * static_cast<double>(kGiB));
  return profile;
}

// The machine of arXiv:2303.06865 table 1: T4, 208 GB, NVMe quoted at 2 GB/s read, 1 GB/s write.
Profile paper_t4() {
  Profile profile;
  profile.name = "t4";
  profile.description =
      "T4 16 GB, 16 cores at 2.0 GHz, 208 GB of memory, NVMe stripe: the machine of the FlexGen "
      "paper "
      "(table 1), with what good kernels and copies reach on it";
  Processor device;
  device.name = "T4 16 GB";
  device.memory_read = share_of(320e9, 0.75, "the data sheet's 320 GB/s");
  constexpr std::pair<int64_t, double> kRates[] = {
      {1, 0.5}, {8, 3.5}, {16, 7}, {32, 12}, {64, 17}, {128, 20}, {512, 21.24}, {4096, 21.24}};
  for (const auto& [m, tflops] : kRates)
    device.matmul.push_back(
        {kF16, m, 12288, 12288,
         m >= 512 ? published(tflops * 1e12, "FlexGen's cost model, prefill rate on T4")
                  : Figure{tflops * 1e12, 0, FigureSource::kEstimate,
                           "below the published prefill rate as the units empty"}});
  device.attention = {{DType::kF16, share_of(320e9, 0.7, "the data sheet's 320 GB/s"),
                       published(9.97e12, "FlexGen's cost model, batched products of prefill"),
                       share_of(65e12, 0.1, "the data sheet's dense 16-bit rate")}};
  device.launch_seconds = {8e-6, 0, FigureSource::kEstimate, "a kernel launch"};
  device.synchronise_seconds = {20e-6, 0, FigureSource::kEstimate, "an event"};
  profile.device = device;
  profile.host = host_processor({"Xeon at 2.0 GHz, 16 cores", 16, 100, 1.5, 2, 1, 208, 1500});
  profile.link = {published(12e9, "paper, figure of the machine: 12 GB/s"),
                  published(12e9, "paper, figure of the machine: 12 GB/s"),
                  {0.85, 0, FigureSource::kEstimate, "both directions meet in host memory"},
                  {10e-6, 0, FigureSource::kEstimate, "a copy's set-up"}};
  Disk disk;
  disk.read = published(2e9, "paper, section 6: about 2 GB/s");
  disk.write = published(1e9, "paper, section 6: about 1 GB/s");
  disk.mixed_read = share_of(2e9, 0.6, "the read rate");
  disk.mixed_write = share_of(1e9, 0.6, "the write rate");
  disk.busy_read = disk.read;
  disk.latency_seconds = {100e-6, 0, FigureSource::kEstimate, "flash read"};
  profile.disks = {disk};
  profile.device_bytes = static_cast<int64_t>(14.74 * static_cast<double>(kGiB));
  // What the published cost model places in: FlexGen's own policies fit.
  profile.host_bytes = 204 * kGiB;
  profile.disk_bytes = static_cast<int64_t>(1.5e12);
  return profile;
}

// The constants of FlexGen's public cost_model.py, as that runtime reached them.
Profile code_t4() {
  constexpr const char* kNote = "FlexGen, experimental/cost_model.py";
  const auto gib = static_cast<double>(kGiB);
  Profile profile = paper_t4();
  profile.name = "flexgen-t4";
  profile.description = "the rates that FlexGen's public cost model carries for its T4 machine";
  Processor& device = *profile.device;
  device.matmul = {{kF16, 1, 12288, 12288, published(0.14e12, "4.3 TFLOP/s at 32 rows, by rows")},
                   {kF16, 32, 12288, 12288, published(4.3e12, kNote)},
                   {kF16, 64, 12288, 12288, published(4.3e12, kNote)},
                   {kF16, 512, 12288, 12288, published(21.24e12, kNote)}};
  device.attention = {{DType::kF16, published(0.079e12, kNote), published(9.97e12, kNote),
                       published(0.079e12, kNote)}};
  profile.host.attention = {{DType::kF16, published(0.0123e12, kNote),
                             Figure{0.2e12, 0, FigureSource::kEstimate, "the cores"},
                             published(0.0123e12, kNote)}};
  profile.link.to_device = published(12.89 * gib, kNote);
  profile.link.to_host = published(4.82 * gib, kNote);
  Disk& disk = profile.disks.front();
  disk.read = disk.mixed_read = disk.busy_read = published(0.473 * gib, kNote);
  disk.write = disk.mixed_write = published(2.015 * gib, kNote);
  profile.device_bytes = 15 * kGiB;
  profile.host_bytes = 204 * kGiB;
  profile.disk_bytes = 1500 * kGiB;
  return profile;
}
}  // namespace

std::vector<std::string> shipped_profile_names() {
  std::vector<std::string> names{"t4", "flexgen-t4"};
  for (const GpuRow& row : kGpus) names.emplace_back(row.name);
  return names;
}

std::optional<Profile> shipped_profile(std::string_view name) {
  if (name == "t4") return paper_t4();
  if (name == "flexgen-t4") return code_t4();
  for (const GpuRow& row : kGpus)
    if (name == row.name) return gpu_profile(row);
  return std::nullopt;
}

}  // namespace sluice::policy
