#include "src/engine/held_experts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "io/files/durable_file.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice {

namespace {
// Of a thousand layers with a thousand experts each.
constexpr int64_t kMostFileBytes = int64_t{8} << 20;

// Beside `file`, and nobody else's: other engines, of this process and of others, may write theirs.
std::string own_name(const std::string& file) {
  static std::atomic<int64_t> written{0};
  return fmt::format("{}.{}-{}", file, ::getpid(), written++);
}
}  // namespace

HeldExperts::HeldExperts(const ScheduleShape& shape, std::string file,
                         std::function<void(std::string_view)> log)
    : file_(std::move(file)), log_(std::move(log)) {
  for (const ScheduleSublayer& sublayer : shape.sublayers) {
    const ScheduleExperts& layer = layers_.emplace_back(sublayer.experts);
    auto& cache = first_.emplace_back();
    if (layer.experts == 0) continue;
    cache = ExpertCache(layer.others(), layer.slots, shape.expert_decay);
    counts_.experts += layer.experts;
    counts_.resident += layer.resident;
    counts_.slots += layer.slots;
  }
  if (counts_.slots > 0 && !file_.empty()) read_file();
  caches_ = first_;
}

// {"layers": {"SUBLAYER": {"experts": E, "held": [by falling worth]}}}
void HeldExperts::read_file() {
  try {
    const auto text = read_file_if_there(file_, kMostFileBytes);
    if (!text) return;
    const auto json = nlohmann::json::parse(*text);
    const auto& layers = json.at("layers");
    if (!layers.is_object()) throw Error(ErrorKind::kFile, "no layers");
    for (size_t i = 0; i < first_.size(); ++i) {
      const std::string name = std::to_string(i);
      if (!first_[i] || !layers.contains(name)) continue;
      const auto& layer = layers.at(name);
      if (layer.at("experts").get<int64_t>() != layers_[i].experts) continue;
      auto held = layer.at("held").get<std::vector<int32_t>>();
      const std::set<int32_t> distinct(held.begin(), held.end());
      if (distinct.size() != held.size() || (!held.empty() && *distinct.begin() < 0) ||
          (!held.empty() && *distinct.rbegin() >= layers_[i].experts))
        throw Error(ErrorKind::kFile, "no list of experts");
      std::erase_if(held, [&](int32_t expert) { return layers_[i].is_resident(expert); });
      for (int32_t& expert : held) expert = layers_[i].turn_of(expert);
      held.resize(std::min(held.size(), static_cast<size_t>(first_[i]->slots())));
      first_[i]->hold(held);
    }
  } catch (const std::exception& error) {
    if (log_) log_(fmt::format("{} is not read: {}", file_, error.what()));
  }
}

void HeldExperts::write_file() const {
  nlohmann::json layers = nlohmann::json::object();
  for (size_t i = 0; i < caches_.size(); ++i) {
    if (!caches_[i]) continue;
    std::vector<int32_t> held = caches_[i]->by_worth();
    for (int32_t& turn : held) turn += static_cast<int32_t>(layers_[i].resident);
    layers[std::to_string(i)] = {{"experts", layers_[i].experts}, {"held", held}};
  }
  const std::string own = own_name(file_);
  try {
    if (const auto folder = std::filesystem::path(file_).parent_path(); !folder.empty())
      std::filesystem::create_directories(folder);
    io::write_file_durably(own, nlohmann::json{{"layers", layers}}.dump());
    std::filesystem::rename(own, file_);
  } catch (const std::exception& error) {
    std::error_code ignored;
    std::filesystem::remove(own, ignored);
    if (log_) log_(fmt::format("{} is not written: {}", file_, error.what()));
  }
}

WeightStore::HeldLists HeldExperts::held() const {
  WeightStore::HeldLists out(first_.size());
  for (size_t i = 0; i < first_.size(); ++i) {
    if (!first_[i]) continue;
    out[i].assign(first_[i]->held().begin(), first_[i]->held().end());
    for (int32_t& turn : out[i]) turn += static_cast<int32_t>(layers_[i].resident);
  }
  return out;
}

void HeldExperts::begin_run(ScheduleGenerator& schedule, WeightStore& weights,
                            const std::stop_token& cancel) {
  if (counts_.slots == 0) return;
  if (is_running_) {
    weights.load_slots(
        held(), [](int64_t) {}, cancel);
    caches_ = first_;
    memory_ = {};
  }
  is_running_ = true;
  schedule.set_expert_memory(memory_);
  before_ = counts_.guesses;
  for (size_t i = 0; i < caches_.size(); ++i)
    if (caches_[i]) *schedule.expert_cache(i) = *caches_[i];
}

void HeldExperts::count(const ScheduleGenerator& schedule) {
  if (counts_.slots == 0) return;
  counts_.guesses = {before_.guessed + schedule.guess_counts().guessed,
                     before_.right + schedule.guess_counts().right};
  counts_.asked = counts_.found = 0;
  for (size_t i = 0; i < caches_.size(); ++i) {
    if (!caches_[i]) continue;
    const ExpertCache::Counts of_layer = schedule.expert_counts(i);
    counts_.asked += of_layer.asked;
    counts_.found += of_layer.found;
  }
}

void HeldExperts::end_run(const ScheduleGenerator& schedule) {
  if (counts_.slots == 0) return;
  for (size_t i = 0; i < caches_.size(); ++i)
    if (caches_[i]) *caches_[i] = *schedule.expert_cache(i);
  memory_ = schedule.expert_memory();
  is_running_ = false;
  if (!file_.empty() && counts_.asked > 0) write_file();
}

}  // namespace sluice
