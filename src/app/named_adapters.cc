#include "src/app/named_adapters.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"

namespace sluice::app {

namespace {
constexpr size_t kLongestAdapterName = 200;
}

void check_adapter_name(std::string_view name) {
  const bool is_plain = std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
  if (!name.empty() && name.size() <= kLongestAdapterName && is_plain) return;
  throw Error(ErrorKind::kUser, fmt::format("\"{}\" is no name of an adapter", name.substr(0, 200)),
              "take up to 200 characters, none of them control characters");
}

NamedAdapter open_adapter(const std::string& given) {
  // A folder may have = in its name: what is before the first one is the name where that gives a
  // folder.
  NamedAdapter out;
  const size_t equals = given.find('=');
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(given, error);
  if (equals != std::string::npos && !is_folder) {
    out.name = given.substr(0, equals);
    out.folder = given.substr(equals + 1);
    check_adapter_name(out.name);
  } else {
    out.folder = given;
  }
  out.adapter = LoraAdapter::open(out.folder);
  if (out.name.empty()) out.name = out.adapter.name;
  check_adapter_name(out.name);
  return out;
}

std::vector<NamedAdapter> open_adapters(const std::vector<std::string>& given,
                                        std::string_view taken) {
  std::vector<NamedAdapter> out;
  for (const std::string& one : given) {
    NamedAdapter next = open_adapter(one);
    const bool is_there =
        next.name == taken || std::any_of(out.begin(), out.end(), [&](const NamedAdapter& other) {
          return other.name == next.name;
        });
    if (is_there)
      throw Error(ErrorKind::kUser, fmt::format("`lora`: {} names two things", next.name),
                  "write `lora` NAME=DIR with a name of its own for each");
    out.push_back(std::move(next));
  }
  return out;
}

AdapterRoom room_for(const BoundModel& model, const std::vector<NamedAdapter>& adapters,
                     int64_t more_bytes, int64_t most_rank) {
  AdapterRoom room = adapter_room(model, {}, more_bytes, most_rank);
  for (const NamedAdapter& one : adapters) {
    const AdapterNeed need = adapter_need(model, one.adapter);
    room.bytes += need.bytes;
    room.rank = std::max(room.rank, need.rank);
  }
  return room;
}

void load_adapters(Engine& engine, const std::vector<NamedAdapter>& adapters) {
  for (const NamedAdapter& one : adapters) engine.adapters().load(one.name, one.adapter);
}

}  // namespace sluice::app
