#include "src/app/buying.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/mutex.h"
#include "src/base/side_by_side.h"
#include "src/model/planning_shapes.h"

namespace sluice::app {

namespace {
using Kind = ChangedPart::Kind;

struct Rate {
  double tokens_per_second = 0;
  TierBytes placed;
};

// Of the question's job; nothing where the weights have no room.
std::optional<Rate> rate_of(const PlanQuestion& question, const std::stop_token& stop) {
  try {
    policy::SearchRequest request = plan_request(question);
    request.stop = stop;
    const policy::SearchResult result = policy::search_policy(request);
    return Rate{job_tokens_per_second(result.best, request.job), placed_weights(result.best.plan)};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return std::nullopt;
  }
}

void fit_one(const FitsQuestion& question, const ModelShape& model, const std::stop_token& stop,
             Fit& fit) {
  PlanQuestion asked;
  asked.model = &model;
  asked.profile = question.profile;
  asked.device_bytes = question.device_bytes;
  asked.host_bytes = question.host_bytes;
  asked.kv_dtype = question.kv_dtype;
  asked.job = question.job;
  asked.job.sequences = 1;
  asked.objective = policy::Objective::kLatency;
  const auto one = rate_of(asked, stop);
  if (!one) {
    fit.refusal = "neither memory nor disk has room for it";
    return;
  }
  fit.one_user = one->tokens_per_second;
  fit.placed = one->placed;
  if (question.together < 1 || fit.one_user < question.at_least) return;
  asked.job.sequences = question.together;
  asked.objective = policy::Objective::kThroughput;
  if (const auto many = rate_of(asked, stop)) fit.together = many->tokens_per_second;
}

// Sizes of memory that machines have, in GiB, and rates of disks in GB/s.
constexpr int64_t kMemories[] = {8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024};
constexpr int64_t kMostTimes = 16;  // as much memory as there is
constexpr double kDisks[] = {3.5, 7, 14};
constexpr const char* kPublished = "flexgen-t4";  // rates of a paper's model, of no card of its own
constexpr const char* kFormats[] = {"int8", "int4", "q3_k", "q2_k"};

// A machine and a model that parts are changed of, one after the other.
struct Changed {
  ModelShape model;
  policy::Profile profile;
  PlanQuestion question;
};

struct Step {
  ChangedPart part;
  std::function<void(Changed&)> apply;
};

class TargetSearch {
 public:
  TargetSearch(const TargetQuestion& asked, const std::stop_token& stop)
      : asked_(asked), stop_(stop) {}

  TargetAnswer find() {
    TargetAnswer out;
    out.as_it_is = rate_with({});
    if (out.as_it_is >= asked_.tokens_per_second) return out;
    for (const Kind kind : {Kind::kFormat, Kind::kMemory, Kind::kDisk, Kind::kDevice})
      lists_.push_back(steps_of(kind));
    for (const auto& list : lists_) add(out, nullptr, list);
    for (size_t i = 0; i < lists_.size(); ++i)
      for (size_t j = i + 1; j < lists_.size(); ++j) {
        enough_beside_ = enough_;
        for (const Step& first : lists_[i])
          if (!enough_.contains(first.part.what)) add(out, &first, lists_[j]);
      }
    const auto worth = [](const Change& change) {
      const auto price = change.price();
      const auto& last = change.parts.back();
      return std::tuple(!price.has_value(), price.value_or(0), change.parts.size(), last.kind);
    };
    std::stable_sort(out.changes.begin(), out.changes.end(),
                     [&](const Change& a, const Change& b) { return worth(a) < worth(b); });
    return out;
  }

 private:
  // The first of a list that reaches the rate, beside `before` where there is one; of devices all.
  // What is enough alone, or beside a smaller `before`, is not asked again, nor what is larger.
  void add(TargetAnswer& out, const Step* before, const std::vector<Step>& list) {
    for (const Step& step : list) {
      const bool is_device = step.part.kind == Kind::kDevice;
      if (before && enough_beside_.contains(step.part.what)) {
        if (is_device) continue;
        return;
      }
      std::vector<const Step*> steps{&step};
      if (before) steps.insert(steps.begin(), before);
      const double rate = rate_with(steps);
      if (rate < asked_.tokens_per_second) continue;
      (before ? enough_beside_ : enough_).insert(step.part.what);
      Change& change = out.changes.emplace_back();
      change.tokens_per_second = rate;
      for (const Step* one : steps) change.parts.push_back(one->part);
      if (!is_device) return;
    }
  }

  double rate_with(const std::vector<const Step*>& steps) {
    Changed changed{*asked_.question.model, *asked_.question.profile, asked_.question};
    for (const Step* step : steps) step->apply(changed);
    changed.question.model = &changed.model;
    changed.question.profile = &changed.profile;
    const auto rate = rate_of(changed.question, stop_);
    return rate ? rate->tokens_per_second : 0;
  }

  std::optional<double> price_of(const std::string& part) const {
    const auto found = asked_.prices.find(part);
    return found == asked_.prices.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<Step> steps_of(Kind kind) const {
    switch (kind) {
      case Kind::kFormat: return formats();
      case Kind::kMemory: return memories();
      case Kind::kDisk: return disks();
      case Kind::kDevice: return devices();
    }
    return {};
  }

  std::vector<Step> formats() const {
    std::vector<Step> out;
    if (asked_.question.packed) return out;  // its own codes
    const int64_t now = asked_.question.model->weight_bytes();
    for (const char* name : kFormats) {
      const WeightFormat format = *parse_weight_format(name);
      ModelShape model = *asked_.question.model;
      model.set_weights(format);
      if (model.weight_bytes() >= now) continue;
      out.push_back({{Kind::kFormat, fmt::format("weights in {}", name), 0},
                     [format](Changed& changed) { changed.model.set_weights(format); }});
    }
    return out;
  }

  std::vector<Step> memories() const {
    std::vector<Step> out;
    const PlanQuestion& q = asked_.question;
    const int64_t now = q.host_bytes > 0 ? q.host_bytes : q.profile->host_bytes;
    for (const int64_t gib : kMemories) {
      const int64_t bytes = gib * kGiB;
      // What a machine has of its memory for programs is a little less than its size.
      if (bytes <= now + now / 8 || bytes > kMostTimes * now) continue;
      std::optional<double> price = price_of("memory");
      if (price) *price *= static_cast<double>(gib);
      out.push_back(
          {{Kind::kMemory, fmt::format("{}GiB of memory", gib), price}, [bytes](Changed& changed) {
             changed.profile.host_bytes = bytes;
             changed.question.host_bytes = 0;
           }});
    }
    return out;
  }

  std::vector<Step> disks() const {
    std::vector<Step> out;
    const policy::Profile& profile = *asked_.question.profile;
    for (const double rate : kDisks) {
      // Without a disk what else it would be like is not known.
      if (profile.disks.empty() || rate * 1e9 <= profile.disk_read() * 1.1) continue;
      out.push_back({{Kind::kDisk, fmt::format("a disk that reads {:g}GB/s", rate),
                      price_of(fmt::format("disk-{:g}", rate))},
                     [rate](Changed& changed) {
                       changed.profile.disks.resize(1);
                       policy::Disk& disk = changed.profile.disks.front();
                       const double times = rate * 1e9 / disk.read.value;
                       for (policy::Figure* figure : {&disk.read, &disk.mixed_read, &disk.busy_read,
                                                      &disk.write, &disk.mixed_write})
                         figure->value *= times;
                     }});
    }
    return out;
  }

  std::vector<Step> devices() const {
    std::vector<Step> out;
    const policy::Profile& now = *asked_.question.profile;
    if (now.device && now.device->threads > 0) return out;  // an emulated one
    std::vector<policy::Profile> shipped;
    for (const std::string& name : policy::shipped_profile_names())
      if (auto one = policy::shipped_profile(name); one->device && name != kPublished)
        shipped.push_back(*std::move(one));
    std::stable_sort(shipped.begin(), shipped.end(),
                     [](const auto& a, const auto& b) { return a.device_bytes < b.device_bytes; });
    for (const policy::Profile& other : shipped) {
      if (now.device &&
          (other.device->name == now.device->name || other.device_bytes < now.device_bytes))
        continue;
      out.push_back({{Kind::kDevice, other.name, price_of(other.name)}, [other](Changed& changed) {
                       changed.profile.device = other.device;
                       changed.profile.device_bytes = other.device_bytes;
                       changed.profile.link = other.link;
                       changed.profile.more_devices.clear();
                       changed.question.device_bytes = 0;
                     }});
    }
    return out;
  }

  const TargetQuestion& asked_;
  std::stop_token stop_;
  std::vector<std::vector<Step>> lists_;
  std::set<std::string> enough_;         // parts that reach it alone
  std::set<std::string> enough_beside_;  // these, and parts that do beside a part of another list
};

double number_before(const std::string& text, const std::string& end) {
  char* rest = nullptr;
  const double value = std::strtod(text.c_str(), &rest);
  return end == rest && value >= 0 && std::isfinite(value) && rest != text.c_str() ? value : -1;
}
}  // namespace

std::optional<double> Change::price() const {
  double sum = 0;
  for (const ChangedPart& part : parts) {
    if (!part.price) return std::nullopt;
    sum += *part.price;
  }
  return sum;
}

void find_fits(const FitsQuestion& question, const std::stop_token& stop,
               const std::function<void(const Fit&)>& found) {
  std::vector<std::pair<std::string, ModelShape>> models;
  for (const std::string& name : question.models) models.emplace_back(name, *planning_shape(name));
  std::stable_sort(models.begin(), models.end(), [](const auto& a, const auto& b) {
    return a.second.num_parameters() > b.second.num_parameters();
  });
  std::vector<std::optional<Fit>> fits(models.size() * question.formats.size());
  Mutex mutex;
  size_t told = 0;  // those before it have been
  run_side_by_side(fits.size(), [&](size_t i) {
    const auto& [name, own] = models[i / question.formats.size()];
    const auto& format = question.formats[i % question.formats.size()];
    ModelShape model = own;
    if (format) model.set_weights(*format);
    Fit fit;
    fit.model = name;
    fit.weights = model.weights_name();
    fit.parameters = static_cast<double>(own.num_parameters());
    fit.weight_bytes = model.weight_bytes();
    try {
      fit_one(question, model, stop, fit);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kCancelled) throw;
      fit.refusal = error.text();
    }
    const MutexLock lock(mutex);
    fits[i] = std::move(fit);
    for (; told < fits.size() && fits[told]; ++told)
      if (fits[told]->one_user >= question.at_least) found(*fits[told]);
  });
}

TargetAnswer find_target(const TargetQuestion& question, const std::stop_token& stop) {
  return TargetSearch(question, stop).find();
}

double parse_hour_price(const std::string& text) {
  if (const double price = number_before(text, "/h"); price >= 0) return price;
  const size_t at = text.find("W@");
  if (at != std::string::npos) {
    const double watts = number_before(text.substr(0, at + 1), "W");
    const double of_kwh = number_before(text.substr(at + 2), "/kWh");
    if (watts >= 0 && of_kwh >= 0) return watts / 1000 * of_kwh;
  }
  throw Error(ErrorKind::kUser, fmt::format("\"{}\" is no price", text),
              "write 0.60/h for an hour of the machine, or 450W@0.30/kWh for what it draws");
}

double price_of_million(double hour_price, double tokens_per_second) {
  return hour_price / 3600 / tokens_per_second * 1e6;
}

}  // namespace sluice::app
