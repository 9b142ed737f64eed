#include "src/jobs/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/jobs/content_key.h"
#include "src/jobs/results_file.h"

namespace sluice::jobs {

namespace {

constexpr int64_t kMostShards = int64_t{1} << 31;

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || text.empty() || value < 0)
    return std::nullopt;
  return value;
}

// FNV-1a's low bits are little more than a parity of the bytes' low bits, so that ids which end in
// even digits would meet in half of the shards. The finaliser of splitmix64 (Steele, Lea, Flood:
// "Fast splittable pseudorandom number generators", 2014) mixes all bits into all. Decides who
// answers what in jobs that have begun: never change it.
uint64_t mixed(uint64_t bits) noexcept {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

// The scheduler's word on one place of several.
struct ArrayPlace {
  std::string who;  // the variable with the index
  int64_t index = 0;
  std::optional<int64_t> count;
};

std::optional<int64_t> number(const Variables& variables, const char* name) {
  const auto text = variables(name);
  if (!text || text->empty()) return std::nullopt;
  const auto value = whole_number(*text);
  if (!value)
    throw Error(ErrorKind::kUser, fmt::format("{} is \"{}\", no whole number", name, *text),
                "write `shard` i/n");
  return value;
}

std::optional<ArrayPlace> slurm_array(const Variables& variables) {
  const auto id = number(variables, "SLURM_ARRAY_TASK_ID");
  if (!id) return std::nullopt;
  const int64_t least = number(variables, "SLURM_ARRAY_TASK_MIN").value_or(0);
  const int64_t step = std::max<int64_t>(number(variables, "SLURM_ARRAY_TASK_STEP").value_or(1), 1);
  const auto most = number(variables, "SLURM_ARRAY_TASK_MAX");
  const auto count = number(variables, "SLURM_ARRAY_TASK_COUNT");
  ArrayPlace place{"SLURM_ARRAY_TASK_ID", (*id - least) / step, count};
  const bool is_even = *id >= least && (*id - least) % step == 0 &&
                       (!most || !count || (*most - least) / step + 1 == *count);
  if (!is_even)
    throw Error(ErrorKind::kUser,
                fmt::format("the Slurm array has gaps: task {} of {} from {} on", *id,
                            count.value_or(0), least),
                "give the array as 0-7, or write `shard` i/n");
  return place;
}

std::optional<ArrayPlace> numbered(const Variables& variables, const char* index,
                                   const char* count) {
  const auto found = number(variables, index);
  if (!found) return std::nullopt;
  return ArrayPlace{index, *found, number(variables, count)};
}

ArrayPlace find_place(const Variables& variables) {
  std::vector<ArrayPlace> found;
  const auto add = [&found](std::optional<ArrayPlace> place) {
    if (place) found.push_back(std::move(*place));
  };
  add(slurm_array(variables));
  add(numbered(variables, "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"));
  // mpirun starts its daemons as a Slurm step: its own word is the finer one. Outside a step
  // SLURM_PROCID is 0 however many tasks were asked for.
  const auto rank = numbered(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  const bool is_step = variables("SLURM_STEP_ID").has_value();
  add(rank || !is_step ? rank : numbered(variables, "SLURM_PROCID", "SLURM_NTASKS"));
  if (found.size() > 1) std::erase_if(found, [](const ArrayPlace& one) { return one.count == 1; });
  if (found.empty())
    throw Error(ErrorKind::kUser,
                "`shard` auto: no scheduler says which of how many this is (SLURM_ARRAY_TASK_ID, "
                "JOB_COMPLETION_INDEX, OMPI_COMM_WORLD_RANK)",
                "write `shard` i/n");
  if (found.size() > 1)
    throw Error(
        ErrorKind::kUser,
        fmt::format("`shard` auto: {} and {} both number this process", found[0].who, found[1].who),
        "write `shard` i/n with the number that you mean");
  return found.front();
}

Shard checked(std::string_view text, int64_t index, int64_t count) {
  if (count >= 1 && count <= kMostShards && index < count) return {index, count};
  throw Error(ErrorKind::kUser,
              fmt::format("`shard` {}: shard {} of {} is none", text, index, count),
              "shards are numbered from 0: 0/3, 1/3, 2/3");
}

// The shard of "…shard-0-of-3"; nothing where the name is another.
std::optional<Shard> shard_of_name(std::string_view rest) {
  constexpr std::string_view kStart = ".shard-", kOf = "-of-";
  const size_t of = rest.find(kOf);
  if (!rest.starts_with(kStart) || of == std::string_view::npos) return std::nullopt;
  const auto index = whole_number(rest.substr(kStart.size(), of - kStart.size()));
  const auto count = whole_number(rest.substr(of + kOf.size()));
  if (!index || !count || *index >= *count) return std::nullopt;
  return Shard{*index, *count};
}

}  // namespace

bool Shard::has(std::string_view key) const noexcept {
  const ContentKey hash = hash_bytes(key);
  using Wide = unsigned __int128;
  const Wide scaled = static_cast<Wide>(mixed(hash.high ^ hash.low)) * static_cast<Wide>(count);
  return static_cast<int64_t>(scaled >> 64) == index;
}

std::string Shard::name() const { return fmt::format("{}/{}", index, count); }

std::string row_key(const ParsedLine& line) {
  const auto name = [](const std::string& custom_id, int64_t line_number) {
    return custom_id.empty() ? fmt::format("line-{}", line_number) : custom_id;
  };
  if (const auto* error = std::get_if<RequestError>(&line))
    return name(error->custom_id, error->line_number);
  const auto& request = std::get<Request>(line);
  return name(request.custom_id, request.line_number);
}

Shard parse_shard(std::string_view text, const Variables& variables) {
  const size_t slash = text.find('/');
  const std::string_view first = text.substr(0, slash);
  std::optional<int64_t> count;
  if (slash != std::string_view::npos) count = whole_number(text.substr(slash + 1));
  const bool is_auto = first == "auto";
  const auto index = is_auto ? std::nullopt : whole_number(first);
  if ((!is_auto && !index) || (slash != std::string_view::npos) != count.has_value() ||
      (!is_auto && !count))
    throw Error(ErrorKind::kUser, fmt::format("`shard` {} is no shard", text),
                "write i/n, as 0/3, or auto, or auto/n");
  if (!is_auto) return checked(text, *index, *count);
  const ArrayPlace place = find_place(variables);
  if (!count) count = place.count;
  if (!count)
    throw Error(
        ErrorKind::kUser,
        fmt::format("`shard` auto: {} is {}, and nothing says of how many", place.who, place.index),
        "write `shard` auto/n, or set JOB_COMPLETIONS");
  return checked(text, place.index, *count);
}

std::string shard_path(const std::string& output, const Shard& shard) {
  return fmt::format("{}.shard-{}-of-{}", output, shard.index, shard.count);
}

std::string rank_path(const std::string& output, int rank) {
  return fmt::format("{}.rank-{}", output, rank);
}

std::vector<JobFile> job_files(const std::string& output) {
  std::vector<JobFile> out;
  const std::filesystem::path path(output);
  const std::string name = path.filename().string();
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (is_file(path)) out.push_back({output, std::nullopt, false});
  if (!is_folder(folder)) return out;
  constexpr std::string_view kRank = ".rank-";
  for (const std::filesystem::path& entry : folder_entries(folder)) {
    const std::string other = entry.filename().string();
    if (other.size() <= name.size() || !other.starts_with(name)) continue;
    const std::string_view rest = std::string_view(other).substr(name.size());
    const bool is_rank = rest.starts_with(kRank) && whole_number(rest.substr(kRank.size()));
    const auto shard = shard_of_name(rest);
    if (is_rank || shard) out.push_back({output + std::string(rest), shard, is_rank});
  }
  return out;
}

void take_others(ResultsFile& results, const std::string& output, const std::optional<Shard>& own,
                 Others others) {
  for (const JobFile& file : job_files(output)) {
    if (file.shard == own && !file.is_rank) continue;
    // Shards of one count never share a row, and ranks are the business of who writes the output.
    const bool shares_rows = !(own && file.shard && own->count == file.shard->count);
    if (shares_rows && !file.is_rank && is_being_written(file.path))
      throw Error(ErrorKind::kUser,
                  fmt::format("another process is writing {}, another part of this job", file.path),
                  "wait for it to end: only shards of one n may run at a time");
    if (others == Others::kCopy)
      results.copy_from(file.path);
    else
      results.include(file.path);
  }
}

}  // namespace sluice::jobs
