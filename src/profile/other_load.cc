#include "src/profile/other_load.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <sstream>

#include "src/base/side_by_side.h"

namespace sluice {

namespace {
// What a system does by itself: daemons, interrupts, and the clock's ticks.
constexpr double kQuietCores = 0.15;
constexpr double kQuietShare = 0.02;

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Of the CPUs in `set`: user, nice, system, interrupts and steal.
double busy_seconds(const cpu_set_t& set) {
  std::ifstream file("/proc/stat");
  const auto ticks = static_cast<double>(std::max<int64_t>(sysconf(_SC_CLK_TCK), 1));
  double sum = 0;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    if (line.size() < 4 || line[3] == ' ') continue;  // the sum of all
    std::istringstream words(line.substr(3));
    size_t cpu = 0;
    std::array<double, 8> times{};  // user nice system idle iowait irq softirq steal
    words >> cpu;
    for (double& time : times) words >> time;
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &set))
      sum += times[0] + times[1] + times[2] + times[5] + times[6] + times[7];
  }
  return sum / ticks;
}
}  // namespace

OtherLoad::OtherLoad(int threads) : threads_(threads), cores_(usable_processors()), begin_(now()) {}

OtherLoad::Times OtherLoad::now() {
  Times out;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return out;
  out.all_busy = busy_seconds(set);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  out.own = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  out.wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return out;
}

void OtherLoad::begin() { begin_ = now(); }

double OtherLoad::cores_taken() const {
  const Times end = now();
  const double wall = end.wall - begin_.wall;
  if (wall <= 0) return 0;
  const double others = (end.all_busy - begin_.all_busy - (end.own - begin_.own)) / wall;
  const double spare = std::max(cores_ - threads_, 0);
  return std::clamp(others - spare, 0.0, static_cast<double>(std::min(threads_, cores_)));
}

bool OtherLoad::is_quiet(double cores_taken) const noexcept {
  return cores_taken <= kQuietCores + kQuietShare * cores_;
}

}  // namespace sluice
