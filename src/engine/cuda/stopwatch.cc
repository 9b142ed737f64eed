#include "src/engine/cuda/stopwatch.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "src/base/error.h"

namespace sluice {

namespace {
// A clock's tick: what takes less is called so long, and rates stay finite.
constexpr double kLeastSeconds = 1e-9;

std::optional<cuda::Graph> recorded(cuda::Stream stream, const std::function<void()>& work) {
  try {
    cuda::Graph::begin(stream);
  } catch (const Error&) {
    return std::nullopt;
  }
  try {
    work();
    return cuda::Graph::end(stream);
  } catch (const Error& error) {
    cuda::Graph::abandon(stream);
    if (error.kind() != ErrorKind::kDevice) throw;
    return std::nullopt;
  }
}
}  // namespace

double Stopwatch::seconds_of(const std::function<void()>& work) {
  timer_.start(stream_);
  work();
  timer_.stop(stream_);
  return std::max(timer_.seconds(), kLeastSeconds);
}

// The first sample is not counted.
policy::Figure Stopwatch::median_of(int rounds, const std::function<double()>& sample) const {
  std::vector<double> seconds;
  sample();
  for (int i = 0; i < samples_; ++i) seconds.push_back(sample() / rounds);
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {median, (seconds.back() - seconds.front()) / median, policy::FigureSource::kMeasured, ""};
}

policy::Figure Stopwatch::of_kernels(int rounds, const Call& call) {
  call(0);  // what is done once only: choosing an algorithm, loading code
  const double once = seconds_of([&] { call(0); });
  const int most = static_cast<int>(std::min(kMostSeconds / once, 1e6));
  const int count = std::clamp(most, std::min(rounds, 4), rounds);
  const auto all = [&] {
    for (int round = 0; round < count; ++round) call(round);
  };
  const std::optional<cuda::Graph> graph = recorded(stream_, all);
  const auto run = [&] { graph ? graph->launch(stream_) : all(); };
  return median_of(count, [&] { return seconds_of(run); });
}

policy::Figure Stopwatch::of_work(int rounds, const Call& call) {
  return median_of(rounds, [&] {
    return seconds_of([&] {
      for (int round = 0; round < rounds; ++round) call(round);
    });
  });
}

policy::Figure Stopwatch::of_host(int rounds, const Call& call) {
  using Clock = std::chrono::steady_clock;
  return median_of(rounds, [&] {
    const Clock::time_point start = Clock::now();
    for (int round = 0; round < rounds; ++round) call(round);
    cuda::synchronize(stream_);
    return std::max(std::chrono::duration<double>(Clock::now() - start).count(), kLeastSeconds);
  });
}

}  // namespace sluice
