#include "tools/spellings.h"

#include <map>
#include <set>
#include <utility>

namespace sluice::tools {

namespace {
// The types of keys and of values in llama.cpp's words as one of ours: q8_0 and q4_0 are int8 and
// int4. A pair that nothing stores stays as it was written, for --kv-dtype to refuse.
std::string kv_dtype_of(const std::string& keys, const std::string& values) {
  static const std::map<std::string, std::string> types{
      {"q8_0", "int8"}, {"q4_0", "int4"}, {"q4_1", "int4"}};
  const auto ours = [](const std::string& type) {
    const auto it = types.find(type);
    return it == types.end() ? type : it->second;
  };
  if (keys.empty() || values.empty()) return ours(keys + values);
  if (ours(keys) == ours(values)) return ours(keys);
  if (ours(keys) == "int8" && ours(values) == "int4") return "k8v4";
  return keys + "/" + values;
}
}  // namespace

std::vector<std::string> normalise_arguments(int argc, char** argv) {
  static const std::map<std::string, std::string> spellings{{"-ngl", "--n-gpu-layers"},
                                                            {"-ot", "--override-tensor"},
                                                            {"-cmoe", "--cpu-moe"},
                                                            {"-ncmoe", "--n-cpu-moe"},
                                                            {"-lm", "--load-mode"},
                                                            {"-pp", "--pp"},
                                                            {"-tg", "--tg"}};
  std::vector<std::string> out;
  std::string types[2];  // of keys and of values
  size_t types_at = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool is_key = word == "-ctk" || word == "--cache-type-k";
    if ((is_key || word == "-ctv" || word == "--cache-type-v") && i + 1 < argc) {
      if (types[0].empty() && types[1].empty()) {
        types_at = out.size() + 1;
        out.insert(out.end(), {"--kv-dtype", ""});
      }
      types[is_key ? 0 : 1] = argv[++i];
      continue;
    }
    const auto it = spellings.find(word);
    out.push_back(it == spellings.end() ? word : it->second);
  }
  if (types_at > 0) out[types_at] = kv_dtype_of(types[0], types[1]);
  // A command of two words.
  static const std::set<std::pair<std::string, std::string>> pairs{
      {"bench", "serve"}, {"bench", "throughput"}, {"bench", "latency"}, {"batch", "merge"}};
  if (out.size() > 1 && pairs.contains({out[0], out[1]})) {
    out[1] = out[0] + "-" + out[1];
    out.erase(out.begin());
  }
  return out;
}

}  // namespace sluice::tools
