#include "tests/policy/machine_fixture.h"

#include <cmath>

namespace sluice::policy {

namespace {
Figure figure(double value) { return {value, 0, FigureSource::kMeasured, ""}; }

Processor plain_processor(double scale) {
  Processor out;
  out.name = "plain";
  out.memory_read = figure(1e11 * scale);
  for (const DType dtype : {DType::kF32, DType::kBF16})
    out.matmul.push_back({WeightFormat::plain(dtype), 1, 1024, 1024, figure(1e12 * scale)});
  out.attention = {
      {DType::kBF16, figure(5e10 * scale), figure(1e12 * scale), figure(1e12 * scale)}};
  return out;
}
}  // namespace

Profile plain_machine(bool has_device) {
  Profile out;
  out.name = has_device ? "plain with a device" : "plain";
  out.host = plain_processor(1);
  if (has_device) out.device = plain_processor(10);
  out.link = {figure(1e10), figure(1e10), figure(1), figure(0)};
  Disk disk;
  disk.read = disk.mixed_read = disk.busy_read = figure(1e9);
  disk.write = disk.mixed_write = figure(5e8);
  disk.latency_seconds = figure(0);
  out.disks = {disk};
  out.device_bytes = has_device ? int64_t{16} << 30 : 0;
  out.host_bytes = int64_t{64} << 30;
  out.disk_bytes = int64_t{1} << 41;
  return out;
}

Profile random_machine(std::mt19937& random, bool has_device) {
  Profile out = plain_machine(has_device);
  const auto vary = [&](Figure& one) {
    one.value *= std::pow(30.0, std::uniform_real_distribution<double>(-0.5, 0.5)(random));
  };
  const auto vary_processor = [&](Processor& processor) {
    vary(processor.memory_read);
    for (MatmulRate& rate : processor.matmul) vary(rate.flops);
    for (AttentionRate& rate : processor.attention) {
      vary(rate.decode_bytes);
      vary(rate.prefill_flops);
      vary(rate.decode_flops);
    }
    processor.launch_seconds.value = 1e-6 * static_cast<double>(random() % 20);
  };
  vary_processor(out.host);
  if (out.device) vary_processor(*out.device);
  vary(out.link.to_device);
  vary(out.link.to_host);
  out.link.both_share.value = 0.5 + 0.5 * static_cast<double>(random() % 2);
  out.link.latency_seconds.value = 1e-6 * static_cast<double>(random() % 30);
  Disk& disk = out.disks.front();
  vary(disk.read);
  vary(disk.write);
  disk.busy_read.value = disk.read.value * (random() % 2 ? 1 : 0.8);
  disk.mixed_read.value = disk.read.value * (random() % 2 ? 1 : 0.6);
  disk.mixed_write.value = disk.write.value * (random() % 2 ? 1 : 0.6);
  disk.latency_seconds.value = 1e-5 * static_cast<double>(random() % 10);
  disk.read_request_seconds.value = 1e-6 * static_cast<double>(random() % 30);
  disk.write_request_seconds.value = 1e-6 * static_cast<double>(random() % 30);
  return out;
}

}  // namespace sluice::policy
