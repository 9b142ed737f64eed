#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "policy/profile.h"
#include "src/base/error.h"

namespace sluice::policy {

namespace {
using Json = nlohmann::ordered_json;
constexpr const char* kSources[] = {"measured", "published", "datasheet", "estimate"};

Json figure_json(const Figure& figure) {
  Json json{{"value", figure.value}};
  if (figure.spread > 0) json["spread"] = figure.spread;
  json["source"] = kSources[static_cast<size_t>(figure.source)];
  if (!figure.note.empty()) json["note"] = figure.note;
  return json;
}

// One object of the file: reads its members by name and refuses what it does not know.
class Reader {
 public:
  Reader(const Json& json, std::string path, std::string_view origin)
      : json_(json), path_(std::move(path)), origin_(origin) {
    if (!json.is_object()) refuse(path_, "is not an object");
  }

  [[noreturn]] void refuse(const std::string& where, const std::string& what) const {
    throw Error(ErrorKind::kUser, fmt::format("profile {}: {} {}", origin_, where, what),
                "docs/formats/profile.md has the format; sluice profile writes one");
  }
  std::string at(const char* key) const { return path_.empty() ? key : path_ + "." + key; }

  const Json& need(const char* key) {
    seen_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end()) refuse(at(key), "is missing");
    return *found;
  }
  bool has(const char* key) {
    seen_.insert(key);
    const auto found = json_.find(key);
    return found != json_.end() && !found->is_null();
  }
  std::string text(const char* key) {
    if (!has(key)) return {};
    const Json& value = json_[key];
    if (!value.is_string()) refuse(at(key), "is not a text");
    return value.get<std::string>();
  }
  int64_t integer(const char* key) {
    const Json& value = need(key);
    if (!value.is_number_integer()) refuse(at(key), "is not a whole number");
    return value.get<int64_t>();
  }
  bool boolean(const char* key) {
    if (!has(key)) return false;
    if (!json_[key].is_boolean()) refuse(at(key), "is not true or false");
    return json_[key].get<bool>();
  }
  KvFormat kv_format(const char* key) {
    const Json& value = need(key);
    const auto type = value.is_string() ? parse_kv_format(value.get<std::string>()) : std::nullopt;
    if (!type) refuse(at(key), "is not an element type of KV (f32, f16, bf16, int8, int4)");
    return *type;
  }
  WeightFormat weight_format(const char* key) {
    const Json& value = need(key);
    const auto format =
        value.is_string() ? parse_weight_format(value.get<std::string>()) : std::nullopt;
    if (!format) refuse(at(key), "is not an element type (f32, f16, bf16, int4-g64, int8, ...)");
    return *format;
  }
  /// A bare number, or an object with value, spread, source and note.
  Figure figure(const char* key) {
    const Json& value = need(key);
    Figure out;
    if (value.is_number()) {
      out.value = value.get<double>();
      return out;
    }
    Reader inner(value, at(key), origin_);
    const Json& number = inner.need("value");
    if (!number.is_number()) refuse(at(key) + ".value", "is not a number");
    out.value = number.get<double>();
    if (inner.has("spread")) {
      if (!value["spread"].is_number()) refuse(at(key) + ".spread", "is not a number");
      out.spread = value["spread"].get<double>();
    }
    out.note = inner.text("note");
    const std::string source = inner.text("source");
    for (size_t i = 0; i < std::size(kSources); ++i)
      if (source == kSources[i]) out.source = static_cast<FigureSource>(i);
    if (!source.empty() && source != kSources[static_cast<size_t>(out.source)])
      refuse(at(key) + ".source", "is none of measured, published, datasheet, estimate");
    inner.done();
    return out;
  }
  Reader object(const char* key) { return {need(key), at(key), origin_}; }
  template <typename Each>
  void list(const char* key, const Each& each) {
    const Json& value = need(key);
    if (!value.is_array()) refuse(at(key), "is not a list");
    for (size_t i = 0; i < value.size(); ++i) {
      Reader item(value[i], fmt::format("{}[{}]", at(key), i), origin_);
      each(item);
      item.done();
    }
  }
  void done() const {
    for (const auto& [key, value] : json_.items())
      if (!seen_.contains(key)) refuse(at(key.c_str()), "is not a key of a profile");
  }

 private:
  const Json& json_;
  std::string path_;
  std::string_view origin_;
  std::set<std::string> seen_;
};

Processor read_processor(Reader reader) {
  Processor out;
  out.name = reader.text("name");
  out.conditions = reader.text("conditions");
  if (reader.has("threads")) out.threads = static_cast<int>(reader.integer("threads"));
  out.memory_read = reader.figure("memory_read_bytes_per_second");
  reader.list("matmul", [&](Reader& row) {
    const bool was_called = row.boolean("int8_activations");
    out.matmul.push_back({row.weight_format("weights"), row.integer("m"), row.integer("n"),
                          row.integer("k"), row.figure("flops"),
                          row.boolean("eight_bit_activations") || was_called});
  });
  reader.list("attention", [&](Reader& row) {
    out.attention.push_back({row.kv_format("kv"), row.figure("decode_bytes_per_second"),
                             row.figure("prefill_flops"), row.figure("decode_flops")});
  });
  out.launch_seconds = reader.figure("launch_seconds");
  out.synchronise_seconds = reader.figure("synchronise_seconds");
  reader.done();
  return out;
}

Link read_link(Reader link) {
  const Link out{link.figure("to_device_bytes_per_second"), link.figure("to_host_bytes_per_second"),
                 link.figure("both_share"), link.figure("latency_seconds")};
  link.done();
  return out;
}

Json link_json(const Link& link) {
  return {{"to_device_bytes_per_second", figure_json(link.to_device)},
          {"to_host_bytes_per_second", figure_json(link.to_host)},
          {"both_share", figure_json(link.both_share)},
          {"latency_seconds", figure_json(link.latency_seconds)}};
}

Json processor_json(const Processor& processor) {
  Json json{{"name", processor.name},
            {"threads", processor.threads},
            {"memory_read_bytes_per_second", figure_json(processor.memory_read)},
            {"launch_seconds", figure_json(processor.launch_seconds)},
            {"synchronise_seconds", figure_json(processor.synchronise_seconds)}};
  if (!processor.conditions.empty()) json["conditions"] = processor.conditions;
  json["matmul"] = Json::array();
  for (const MatmulRate& row : processor.matmul) {
    Json& out = json["matmul"].emplace_back(Json{{"weights", format_name(row.weights)},
                                                 {"m", row.m},
                                                 {"n", row.n},
                                                 {"k", row.k},
                                                 {"flops", figure_json(row.flops)}});
    if (row.eight_bit_activations) out["eight_bit_activations"] = true;
  }
  json["attention"] = Json::array();
  for (const AttentionRate& row : processor.attention)
    json["attention"].push_back({{"kv", kv_format_name(row.kv_dtype)},
                                 {"decode_bytes_per_second", figure_json(row.decode_bytes)},
                                 {"prefill_flops", figure_json(row.prefill_flops)},
                                 {"decode_flops", figure_json(row.decode_flops)}});
  return json;
}
}  // namespace

Profile parse_profile(std::string_view json_text, std::string_view origin) {
  const Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw Error(ErrorKind::kUser, fmt::format("profile {}: not a JSON object", origin),
                "docs/formats/profile.md has the format; sluice profile writes one");
  Reader reader(json, "", origin);
  Profile out;
  out.name = reader.text("name");
  if (out.name.empty()) out.name = std::string(origin);
  out.description = reader.text("description");
  out.date = reader.text("date");
  if (reader.has("device")) out.device = read_processor(reader.object("device"));
  out.host = read_processor(reader.object("host"));
  if (out.device && !reader.has("link"))
    reader.refuse("link", "is missing: a machine with a device has one");
  if (!out.device && reader.has("link")) reader.refuse("link", "has no device at its other end");
  if (reader.has("link")) {
    out.link = read_link(reader.object("link"));
  }
  if (reader.has("more_devices"))
    reader.list("more_devices", [&](Reader& one) {
      OtherDevice& other = out.more_devices.emplace_back();
      other.processor = read_processor(one.object("device"));
      other.link = read_link(one.object("link"));
      other.bytes = one.integer("device_memory_bytes");
    });
  reader.list("disks", [&](Reader& disk) {
    out.disks.push_back(
        {disk.text("path"), disk.figure("read_bytes_per_second"),
         disk.figure("write_bytes_per_second"), disk.figure("mixed_read_bytes_per_second"),
         disk.figure("mixed_write_bytes_per_second"), disk.figure("busy_read_bytes_per_second"),
         disk.figure("latency_seconds"),
         disk.has("read_request_seconds") ? disk.figure("read_request_seconds") : Figure{},
         disk.has("write_request_seconds") ? disk.figure("write_request_seconds") : Figure{}});
  });
  out.shares_cores = reader.boolean("shares_cores");
  if (reader.has("copy_delay_seconds_per_byte"))
    out.copy_delay = reader.figure("copy_delay_seconds_per_byte");
  if (reader.has("copy_bytes_per_second")) out.copy_rate = reader.figure("copy_bytes_per_second");
  if (reader.has("read_delay_seconds_per_byte"))
    out.read_delay = reader.figure("read_delay_seconds_per_byte");
  if (reader.has("device_memory_bytes")) out.device_bytes = reader.integer("device_memory_bytes");
  out.host_bytes = reader.integer("host_memory_bytes");
  if (reader.has("disk_bytes")) out.disk_bytes = reader.integer("disk_bytes");
  if (reader.has("host_memory"))
    reader.list("host_memory", [&](Reader& row) {
      out.host_memory.push_back(
          {static_cast<int>(row.integer("threads")), row.figure("read_bytes_per_second")});
    });
  reader.done();
  validate(out);
  return out;
}

std::string profile_to_json(const Profile& profile) {
  Json json{{"name", profile.name}, {"description", profile.description}, {"date", profile.date}};
  if (profile.device) json["device"] = processor_json(*profile.device);
  json["host"] = processor_json(profile.host);
  if (profile.device) json["link"] = link_json(profile.link);
  for (const OtherDevice& other : profile.more_devices)
    json["more_devices"].push_back({{"device", processor_json(other.processor)},
                                    {"link", link_json(other.link)},
                                    {"device_memory_bytes", other.bytes}});
  json["disks"] = Json::array();
  for (const Disk& disk : profile.disks) {
    Json& out = json["disks"].emplace_back(
        Json{{"path", disk.path},
             {"read_bytes_per_second", figure_json(disk.read)},
             {"write_bytes_per_second", figure_json(disk.write)},
             {"mixed_read_bytes_per_second", figure_json(disk.mixed_read)},
             {"mixed_write_bytes_per_second", figure_json(disk.mixed_write)},
             {"busy_read_bytes_per_second", figure_json(disk.busy_read)},
             {"latency_seconds", figure_json(disk.latency_seconds)}});
    if (disk.read_request_seconds.value > 0)
      out["read_request_seconds"] = figure_json(disk.read_request_seconds);
    if (disk.write_request_seconds.value > 0)
      out["write_request_seconds"] = figure_json(disk.write_request_seconds);
  }
  json["shares_cores"] = profile.shares_cores;
  if (profile.copy_delay.value > 0)
    json["copy_delay_seconds_per_byte"] = figure_json(profile.copy_delay);
  if (profile.copy_rate.value > 0) json["copy_bytes_per_second"] = figure_json(profile.copy_rate);
  if (profile.read_delay.value > 0)
    json["read_delay_seconds_per_byte"] = figure_json(profile.read_delay);
  json["device_memory_bytes"] = profile.device_bytes;
  json["host_memory_bytes"] = profile.host_bytes;
  json["disk_bytes"] = profile.disk_bytes;
  json["host_memory"] = Json::array();
  for (const ThreadRate& row : profile.host_memory)
    json["host_memory"].push_back(
        {{"threads", row.threads}, {"read_bytes_per_second", figure_json(row.memory_read)}});
  return json.dump(1) + "\n";
}

}  // namespace sluice::policy
