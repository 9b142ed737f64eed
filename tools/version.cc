// sluice version, and what a bug report should hold.
#include <cstdio>

#include "kernels/cpu/isa.h"
#include "src/base/bytes.h"
#include "src/device/memory_limit.h"
#include "tools/command.h"

namespace sluice::tools {

Command add_version(CLI::App& program) {
  auto report = std::make_shared<bool>(false);
  CLI::App* parser = program.add_subcommand("version", "the version; --report for bug reports");
  parser->add_flag("--report", *report, "compiler, kernels, memory");
  return {parser, [report](std::stop_token) {
            std::printf("sluice %s\n", SLUICE_VERSION);
            if (!*report) return;
            const MemoryLimit limit = memory_limit();
            std::printf("compiler: %s\n%smemory: %s (%s), %s available\n", __VERSION__,
                        kernels::describe_kernels().c_str(),
                        format_bytes(limit.total_bytes).c_str(), limit.source.c_str(),
                        format_bytes(limit.available_bytes).c_str());
          }};
}

}  // namespace sluice::tools
