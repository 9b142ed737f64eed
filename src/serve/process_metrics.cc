#include "src/serve/process_metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/serve/metrics.h"

namespace sluice::serve {

namespace {
void add(std::string& out, const char* name, const char* type, const char* help, double value) {
  metric_head(out, name, type, help);
  out += fmt::format("{} {}\n", name, value);
}

// Of /proc/self/stat, field 3 (its state) and those behind it; the name before them may have
// spaces.
std::istringstream fields_of_stat() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  return std::istringstream(name_end == std::string::npos ? "" : text.substr(name_end + 1));
}

double boot_time() {
  std::ifstream file("/proc/stat");
  std::string word;
  double value = 0;
  while (file >> word)
    if (word == "btime" && file >> value) return value;
  return 0;
}

// The parts of the path that are a file's or a batch's name would each be a series of their own.
std::string handler_of(const http::Request& request) {
  std::string out = request.path;
  for (const std::string& part : request.parts)
    if (const size_t at = part.empty() ? std::string::npos : out.rfind("/" + part);
        at != std::string::npos)
      out.replace(at + 1, part.size(), "{}");
  return out;
}
}  // namespace

std::string process_metrics(const char* version) {
  constexpr int kUserTicks = 14, kSystemTicks = 15, kStart = 22, kVirtual = 23, kResident = 24;
  std::istringstream fields = fields_of_stat();
  double ticks = 0, start = 0, bytes = 0, pages = 0;
  std::string field;
  for (int number = 3; fields >> field; ++number) {
    const double value = std::strtod(field.c_str(), nullptr);
    if (number == kUserTicks || number == kSystemTicks) ticks += value;
    if (number == kStart) start = value;
    if (number == kVirtual) bytes = value;
    if (number == kResident) pages = value;
  }
  const auto per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::string out;
  metric_head(out, "sluice:build_info", "gauge", "What answers.");
  out += fmt::format("sluice:build_info{{version=\"{}\"}} 1\n", version);
  add(out, "process_cpu_seconds_total", "counter", "CPU seconds of this process.",
      ticks / per_second);
  add(out, "process_resident_memory_bytes", "gauge", "Its memory that is resident.",
      pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
  add(out, "process_virtual_memory_bytes", "gauge", "Its address space.", bytes);
  add(out, "process_start_time_seconds", "gauge", "When it began, in seconds since 1970.",
      boot_time() + start / per_second);
  std::error_code error;
  int64_t open = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error))
    ++open;
  add(out, "process_open_fds", "gauge", "Its open files.", static_cast<double>(open));
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
    add(out, "process_max_fds", "gauge", "Files that it may have open.",
        static_cast<double>(limit.rlim_cur));
  return out;
}

void AnswerCounts::count(const http::Request& request, int status) {
  const MutexLock lock(mutex_);
  ++counts_[{request.method, handler_of(request), status / 100}];
}

std::string AnswerCounts::text() const {
  const MutexLock lock(mutex_);
  std::string out;
  metric_head(out, "http_requests_total", "counter",
              "Requests answered, by method, route and status.");
  for (const auto& [key, number] : counts_)
    out += fmt::format("http_requests_total{{method=\"{}\",handler=\"{}\",status=\"{}xx\"}} {}\n",
                       std::get<0>(key), std::get<1>(key), std::get<2>(key), number);
  return out;
}

}  // namespace sluice::serve
