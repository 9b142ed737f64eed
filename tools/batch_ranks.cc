// sluice batch under mpirun or srun: rank 0 deals the rows and writes the output, every rank
// computes with a policy of its own (src/ranks).
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/app/report.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/jobs/shard.h"
#include "src/ranks/row_client.h"
#include "src/ranks/row_server.h"
#include "src/schedule/lanes.h"
#include "tools/batch_files.h"
#include "tools/batch_lines.h"
#include "tools/flag_words.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
using Clock = std::chrono::steady_clock;

const char* state_name(ranks::RankState state) {
  switch (state) {
    case ranks::RankState::kAbsent: return "absent";
    case ranks::RankState::kWorking: return "working";
    case ranks::RankState::kLost: return "lost";
    case ranks::RankState::kLeft: break;
  }
  return "ended";
}

std::string rank_text(const ranks::RankAccount& rank) {
  if (rank.state == ranks::RankState::kLost) return "lost";
  if (!rank.why.empty()) return "failed";
  if (rank.status.lane.empty()) return "starting";
  return fmt::format("{:.3g} tok/s {} {:.0f}%", rank.status.tokens_per_second, rank.status.lane,
                     100 * rank.status.lane_share);
}

// One line for all.
void show(Progress& progress, const ranks::JobAccount& job) {
  double rate = 0;
  std::string all;
  for (size_t i = 0; i < job.ranks.size(); ++i) {
    if (job.ranks[i].state == ranks::RankState::kWorking)
      rate += job.ranks[i].status.tokens_per_second;
    all += fmt::format("{}{}: {}", i == 0 ? " [" : "; ", i, rank_text(job.ranks[i]));
  }
  progress.update(job.done, job.rows, fmt::format("{}/{} rows", job.done, job.rows),
                  fmt::format("{:.3g} tokens/s{}]", rate, all));
}

// The rank's lines from rank 0.
class RankLines final : public LineSource {
 public:
  RankLines(ranks::RowClient& client, const BatchFlags& flags, int32_t vocab_size)
      : client_(client), defaults_(flags.sampling.checked()), vocab_size_(vocab_size) {}

  std::optional<jobs::ParsedLine> next() override {
    auto line = client_.next();
    if (!line) return std::nullopt;
    std::string_view text = line->text;
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (line->number == 1 && text.starts_with(kByteOrderMark))
      text.remove_prefix(kByteOrderMark.size());
    while (!text.empty() && (text.back() == '\r' || text.back() == ' ' || text.back() == '\t'))
      text.remove_suffix(1);
    return jobs::parse_request(text, defaults_, line->number, vocab_size_);
  }
  bool is_open() override { return client_.is_open(); }
  void wait(const std::stop_token& stop) override { client_.wait(stop); }

 private:
  ranks::RowClient& client_;
  sampling::SamplingParams defaults_;
  int32_t vocab_size_;
};

// What the rank's engine does, for rank 0's line.
class RankStatus {
 public:
  explicit RankStatus(ranks::RowClient& client) : client_(client) {}

  void take(const PassReport& report) {
    status_.passes = report.pass + 1;
    status_.running = report.running;
    status_.tokens += report.decode_tokens;
    seconds_ += report.seconds;
    const double elapsed = std::chrono::duration<double>(Clock::now() - began_).count();
    if (seconds_ > 0) status_.tokens_per_second = static_cast<double>(status_.tokens) / seconds_;
    double most = -1;
    for (size_t lane = 0; lane < std::min(report.lanes.size(), report.machine->size()); ++lane) {
      const double busy = report.lanes[lane].busy_seconds;
      if (busy <= most) continue;
      most = busy;
      status_.lane = (*report.machine)[lane].name;
      status_.lane_share = elapsed > 0 ? std::min(busy / elapsed, 1.0) : 0;
    }
    client_.set_status(status_);
  }

 private:
  ranks::RowClient& client_;
  ranks::Status status_;
  double seconds_ = 0;
  Clock::time_point began_ = Clock::now();
};

// mpirun gives a rank one core unless it is told otherwise, and several ranks on a host would each
// take all of its memory.
void check_host(const BatchFlags& flags) {
  const char* here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const int64_t ranks_here = here ? std::atoll(here) : 1;
  if (ranks_here > 1 && flags.engine.memory.empty())
    throw Error(ErrorKind::kUser,
                fmt::format("{} ranks on this host, and no --cpu-mem: each would take all memory "
                            "that is free",
                            ranks_here),
                "start one rank a host (mpirun --map-by ppr:1:node), or give each its --cpu-mem");
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return;
  const int64_t mine = CPU_COUNT(&set);
  const int64_t all = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (mine * ranks_here < all && flags.engine.threads == 0)
    std::fprintf(stderr,
                 "sluice: warning: this rank may use %lld of %lld cores: mpirun --bind-to none (or "
                 "srun -c) gives it more\n",
                 static_cast<long long>(mine), static_cast<long long>(all));
}

// All of this process that speaks to other ranks. Rank 0 serves, every rank computes.
struct Rank {
  Rank(const BatchFlags& flags, Transport& transport)
      : transport(transport), courier(transport), client(courier, flags.rank_deadline) {
    ranks::Patience patience;
    patience.silence_seconds = flags.rank_deadline;
    patience.stall_seconds = std::max(10 * flags.rank_deadline, patience.stall_seconds);
    if (transport.rank() == 0) {
      server = std::make_unique<ranks::RowServer>(courier, transport.size(), patience);
      server->on_progress = [this](const ranks::JobAccount& job) { show(progress, job); };
    }
    courier.on_message = [this](Message&& message) {
      const auto kind = ranks::Reader(message.bytes).kind();
      if (kind < ranks::Kind::kWelcome)
        server->take(std::move(message));
      else
        client.take(message);
    };
    courier.on_tick = [this](double now) {
      if (server) server->tick(now);
      client.tick(now);
    };
    courier.on_error = [this](const std::exception_ptr& error) {
      if (server) server->fail(error);
      client.fail(error);
    };
  }

  ~Rank() { courier.stop(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Transport& transport;
  ranks::Courier courier;
  ranks::RowClient client;
  std::unique_ptr<ranks::RowServer> server;
  Progress progress{"batch"};
};

// What all ranks must have in common: the model, and what lines leave out.
std::string config_of(const BatchFlags& flags, const BatchModel& model) {
  const auto line = jobs::parse_request(R"({"prompt": "x"})", flags.sampling.checked(), 1);
  return model.config + std::get<jobs::Request>(line).key;
}

// The list of rows for the server; error records of lines that are no requests.
ranks::RowJob list_rows(const BatchFlags& flags, const BatchInput& from, const BatchModel& model,
                        jobs::ResultsFile& results) {
  ranks::RowJob job;
  job.input = from.path();
  job.config = config_of(flags, model);
  const auto reader_of = [&](std::istream& input) {
    return jobs::JobReader(input, from.name(), flags.sampling.checked(), &results,
                           model.vocab_size());
  };
  std::ifstream input(from.path());
  jobs::JobReader reader = reader_of(input);
  const Survey found = survey(
      reader, model, model.longest(flags), [&](const jobs::Request& request, int64_t tokens) {
        job.rows.push_back({request.line_number, reader.line_offset(), reader.line_bytes(), tokens,
                            *jobs::ContentKey::from_hex(request.key)});
      });
  job.workload = found.workload;
  std::ifstream again(from.path());
  jobs::JobReader errors = reader_of(again);
  while (const auto line = errors.next())
    if (const auto* error = std::get_if<jobs::RequestError>(&*line)) results.write_error(*error);
  results.flush();
  return job;
}

void tell_rank_error(const Rank& rank, const Error& error) {
  std::fprintf(stderr, "sluice: rank %d: error: %s\n  %s\n", rank.transport.rank(),
               in_flags(error.text()).c_str(), in_flags(error.mend()).c_str());
}

// Computes what rank 0 deals until the job ends.
void compute(const BatchFlags& flags, const BatchModel& model, Rank& rank, jobs::ResultsFile& own,
             const std::stop_token& stop) {
  const auto workload = rank.client.join(config_of(flags, model), own, stop);
  if (!workload || !rank.client.is_open()) return;
  EngineFlags quiet = flags.engine;
  if (!quiet.record_routing.empty())
    quiet.record_routing = jobs::rank_path(quiet.record_routing, rank.transport.rank());
  const auto engine = open_engine(quiet, model.model, *workload, stop);
  const int64_t block = engine->plan().policy.block_sequences();
  rank.client.set_room(std::max<int64_t>(block / 8, 1), block);
  RankLines lines(rank.client, flags, model.vocab_size());
  BatchRun run(lines, own, model, engine->adapters());
  RankStatus status(rank.client);
  run.sink().on_pass_report = [&status](const PassReport& report) { status.take(report); };
  engine->load(stop);
  try {
    engine->generate(run, run.sink(), stop);
  } catch (const Error& error) {
    // All rows have their records: what was still computed here came second.
    if (error.kind() != ErrorKind::kCancelled || !rank.client.is_complete()) throw;
  }
  quiet.json = quiet.json || rank.transport.rank() != 0;  // one table, rank 0's
  finish_run(quiet, engine);
}

// Why it could not go on; empty: it ended as the job did.
std::string compute_or_why(const BatchFlags& flags, const BatchModel& model, Rank& rank,
                           jobs::ResultsFile& own, const std::stop_token& user) {
  std::stop_source stop;
  const std::stop_callback by_user(user, [&stop] { stop.request_stop(); });
  const std::stop_callback by_end(rank.client.ending(), [&stop] { stop.request_stop(); });
  std::string why;
  try {
    compute(flags, model, rank, own, stop.get_token());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCancelled || user.stop_requested()) why = error.text();
    if (error.kind() != ErrorKind::kCancelled) tell_rank_error(rank, error);
  }
  own.on_record = {};
  return why;
}

void print_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    std::fprintf(stderr, "sluice: error: %s\n  %s\n", in_flags(error.text()).c_str(),
                 in_flags(error.mend()).c_str());
  }
}

void print_account(const BatchFlags& flags, const ranks::JobAccount& job, int64_t skipped) {
  if (flags.engine.json) {
    auto list = nlohmann::ordered_json::array();
    for (const ranks::RankAccount& rank : job.ranks)
      list.push_back({{"host", rank.host},
                      {"state", rank.why.empty() ? state_name(rank.state) : "failed"},
                      {"rows", rank.rows},
                      {"tokens", rank.status.tokens},
                      {"tokens_per_s", rank.status.tokens_per_second},
                      {"busiest_lane", rank.status.lane},
                      {"busiest_lane_share", rank.status.lane_share},
                      {"times_lost", rank.times_lost},
                      {"error", rank.why}});
    return print_json({{"requests", job.done},
                       {"skipped", skipped},
                       {"missing", job.rows - job.done},
                       {"dealt_again", job.dealt_again},
                       {"ignored", job.ignored},
                       {"seconds", job.seconds},
                       {"output", flags.output},
                       {"ranks", list}});
  }
  for (size_t i = 0; i < job.ranks.size(); ++i) {
    const ranks::RankAccount& rank = job.ranks[i];
    std::fputs(
        fmt::format("  rank {:<3} {:<16} {:>8} rows  {:>9.3g} tokens/s  {} {:.0f} %  {}{}\n", i,
                    rank.host, rank.rows, rank.status.tokens_per_second, rank.status.lane,
                    100 * rank.status.lane_share,
                    rank.why.empty() ? state_name(rank.state) : "failed: " + rank.why,
                    rank.times_lost > 0 ? fmt::format(" (lost {} times)", rank.times_lost) : "")
            .c_str(),
        stderr);
  }
  std::fputs(
      fmt::format("  {} of {} rows have their record, {} already had; {} were dealt again, {} "
                  "records came second: {}\n",
                  job.done, job.rows, skipped, job.dealt_again, job.ignored, flags.output)
          .c_str(),
      stderr);
}

void run_others(const BatchFlags& flags, Rank& rank, const std::stop_token& stop) {
  std::string why;
  const std::string path = jobs::rank_path(flags.output, rank.transport.rank());
  try {
    const BatchModel model(flags);
    jobs::ResultsFile own(path, model.config, model.name);
    why = compute_or_why(flags, model, rank, own, stop);
  } catch (const Error& error) {
    why = error.text();
    tell_rank_error(rank, error);
  }
  rank.client.say_goodbye(why);
  const bool together = rank.client.wait_to_leave();
  rank.courier.stop();
  if (rank.client.is_complete()) remove_file(path);
  try {
    rank.client.rethrow();
  } catch (const Error& error) {
    tell_rank_error(rank, error);
    std::_Exit(exit_code(error.kind()));  // whoever is gone can't be waited for
  }
  rank.transport.leave(together, 0);
}

// Why the job failed though it came to its end; null: it did not. No rank can be spoken to any
// more.
std::exception_ptr run_first(const BatchFlags& flags, Rank& rank, const std::stop_token& stop) {
  const BatchModel model(flags);
  const BatchInput from(flags.input);
  jobs::ResultsFile results(flags.output, model.config, model.name);
  jobs::take_others(results, flags.output, std::nullopt, jobs::Others::kCopy);
  const int64_t skipped = results.records();
  if (skipped > 0)
    std::fprintf(stderr, "sluice: %s holds %lld answers; going on after them\n",
                 flags.output.c_str(), static_cast<long long>(skipped));
  ranks::RowJob job = list_rows(flags, from, model, results);
  std::fprintf(stderr, "sluice: %zu requests to run on %d ranks\n", job.rows.size(),
               rank.transport.size());
  rank.server->begin(std::move(job), results);
  const std::string path = jobs::rank_path(flags.output, 0);
  {
    jobs::ResultsFile own(path, model.config, model.name);
    const std::string why = compute_or_why(flags, model, rank, own, stop);
    rank.client.say_goodbye(why);
  }
  const ranks::JobAccount account = rank.server->wait(stop);
  rank.courier.stop();
  rank.courier.flush(2);
  if (account.is_complete) remove_file(path);
  print_account(flags, account, skipped);
  int code = 0;
  std::exception_ptr failure;
  try {
    rank.server->rethrow();
    fail_for_errors(results, flags.output);
  } catch (const Error& error) {
    failure = std::current_exception();
    code = exit_code(error.kind());
  }
  if (!account.all_are_here) check_output();  // what follows ends the process
  if (!account.all_are_here && failure) print_error(failure);
  rank.transport.leave(account.all_are_here, code);
  return failure;
}
}  // namespace

void run_rank(const BatchFlags& flags, std::stop_token stop) {
  if (flags.output == "-" || flags.input == "-" || flags.engine.dry_run)
    throw Error(ErrorKind::kUser, "- and --dry-run are for one process, not for ranks",
                "name files, or start one process");
  check_host(flags);
  const auto transport = open_mpi();
  Rank rank(flags, *transport);
  rank.courier.start();
  if (transport->rank() != 0) return run_others(flags, rank, stop);
  std::exception_ptr failure;
  try {
    failure = run_first(flags, rank, stop);
  } catch (...) {
    rank.courier.stop();
    rank.server->fail(std::current_exception());  // nobody waits for a job that does not come
    rank.courier.flush(1);
    throw;
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sluice::tools
