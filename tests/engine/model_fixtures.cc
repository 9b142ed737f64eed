#include "tests/engine/model_fixtures.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/convert/convert.h"
#include "src/app/store_layout.h"
#include "src/base/bytes.h"
#include "src/engine/stores/panel_quantiser.h"
#include "tests/whole_file.h"

namespace sluice::testing {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {
// Where the program was built, or where it was carried to (scripts/gpu-check.sh).
std::string fixtures_root() {
  const char* carried = std::getenv("SLUICE_FIXTURES_ROOT");
  return carried ? carried : SLUICE_FIXTURES;
}

Json read_goldens(const std::string& model) {
  std::ifstream file(fs::path(fixtures_root()) / "models" / model / "goldens.json");
  return Json::parse(file);
}
}  // namespace

namespace {
std::string folder_of(const std::string& name) {
  return name.starts_with('/') ? name : fixtures_root() + "/models/" + name;
}

// Stores that fixtures were quantised to, removed at the end of the program.
struct QuantisedStores {
  fs::path root;
  std::map<std::string, std::string> paths;
  ~QuantisedStores() {
    std::error_code ignored;
    if (!root.empty()) fs::remove_all(root, ignored);
  }
};

enum class Mix : uint8_t { kNone, kWithoutKTypes, kAll, kTypes };

// The plain types by turns, of tables too.
app::Formats mixed_types(const ModelShape& shape) {
  constexpr DType kTypes[] = {DType::kBF16, DType::kF32, DType::kF16};
  app::Formats out;
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = shape.sublayers[i].weights[w];
      if (weight.kind != WeightKind::kVector && !weight.shares_table)
        out[{i, w}] = WeightFormat::plain(kTypes[out.size() % std::size(kTypes)]);
    }
  return out;
}

// A format of every matrix by turns, and no two neighbours alike.
app::Formats mixed_formats(const ModelShape& shape, Mix mix) {
  if (mix == Mix::kTypes) return mixed_types(shape);
  std::vector<WeightFormat> formats = app::mixable_formats(shape);
  if (mix == Mix::kWithoutKTypes)
    std::erase_if(formats, [](const WeightFormat& format) { return format.is_k(); });
  else
    for (const char* name : {"q4_0", "iq4"}) formats.push_back(*parse_weight_format(name));
  app::Formats out;
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w)
      if (shape.sublayers[i].weights[w].may_be_quantised())
        out[{i, w}] = formats[out.size() % formats.size()];
  return out;
}

std::string converted_fixture(const std::string& name, std::optional<WeightFormat> format,
                              Mix mix = Mix::kNone) {
  static QuantisedStores stores;
  if (stores.root.empty())
    stores.root = fs::temp_directory_path() / ("sluice-quantised-" + std::to_string(getpid()));
  const std::string key = fs::path(name).filename().string() + "-" +
                          (mix == Mix::kAll             ? "k-mixed"
                           : mix == Mix::kTypes         ? "types"
                           : mix == Mix::kWithoutKTypes ? "mixed"
                           : format                     ? format_name(*format)
                                                        : "as-it-is");
  if (const auto found = stores.paths.find(key); found != stores.paths.end()) return found->second;
  const BoundModel model = BoundModel::open(folder_of(name));
  io::ConvertOptions options;
  options.destination = stores.root / key;
  options.threads = 1;
  options.quantise = panel_quantiser(kernels::RangeSearch::kClip);
  if (model.checkpoint().config_text().empty())  // a GGUF file's
    options.texts.emplace_back("config.json", model.config_text());
  const app::Formats formats =
      mix == Mix::kNone ? app::Formats{} : mixed_formats(model.shape(), mix);
  io::convert_checkpoint(model.checkpoint(),
                         app::store_groups(model, format, kernels::RangeSearch::kClip, nullptr,
                                           nullptr, mix == Mix::kNone ? nullptr : &formats),
                         options);
  return stores.paths[key] = options.destination.string();
}
}  // namespace

std::string fixture_model(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return folder_of(name);
  const std::string format = name.substr(colon + 1, name.find('+') - colon - 1);
  // As convert makes it where nothing is asked: what does not stream as it lies.
  if (format == "store") return converted_fixture(name.substr(0, colon), std::nullopt);
  if (format == "mixed")
    return converted_fixture(name.substr(0, colon), std::nullopt, Mix::kWithoutKTypes);
  if (format == "types") return converted_fixture(name.substr(0, colon), std::nullopt, Mix::kTypes);
  if (format == "k-mixed") return converted_fixture(name.substr(0, colon), std::nullopt, Mix::kAll);
  return converted_fixture(name.substr(0, colon), parse_weight_format(format).value());
}

bool keeps_plain_kv(const std::string& name) {
  const ModelShape shape = BoundModel::open(fixture_model(name)).shape();
  return std::any_of(
      shape.state_groups.begin(), shape.state_groups.end(),
      [](const StateGroup& group) { return group.state.is_latent() || group.state.is_chunked; });
}

KvFormat kv_of(const std::string& name, const KvFormat& wanted) {
  return wanted.is_quantised() && keeps_plain_kv(name) ? KvFormat(DType::kF16) : wanted;
}

void expect_same_tokens(const Answer& actual, const Answer& expected, double tie) {
  ASSERT_EQ(actual.choices.size(), expected.choices.size());
  for (size_t i = 0; i < actual.choices.size(); ++i) {
    const auto& top = expected.choices[i].top;
    ASSERT_EQ(top.size(), 2u);
    if (actual.tokens[i] == expected.tokens[i]) {
      EXPECT_NEAR(actual.choices[i].logprob, expected.choices[i].logprob, tie) << "step " << i;
      continue;
    }
    EXPECT_LT(top[0].logprob - top[1].logprob, tie) << "step " << i;
    return;
  }
}

std::vector<std::string> fixture_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fixtures_root() + "/models"))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<float> read_npy(const std::string& path) {
  const std::string bytes = whole_file(path);
  if (bytes.size() < 10) throw std::runtime_error("no .npy file: " + path);
  const size_t header =
      static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  std::vector<float> values((bytes.size() - 10 - header) / 4);
  std::memcpy(values.data(), bytes.data() + 10 + header, values.size() * 4);
  return values;
}

std::vector<GoldenCase> golden_cases(const std::string& model) {
  std::vector<GoldenCase> cases;
  const Json goldens = read_goldens(model);
  for (const Json& json : goldens.at("cases")) {
    GoldenCase golden;
    golden.name = json.value("name", json.value("prompt", ""));
    golden.prompt = json["prompt_ids"].get<std::vector<int32_t>>();
    golden.greedy = json["greedy_ids"].get<std::vector<int32_t>>();
    golden.margins = json["greedy_margins"].get<std::vector<float>>();
    if (json.contains("logits") && json["logits"].is_string())
      golden.logits =
          read_npy(fixtures_root() + "/models/" + model + "/" + json["logits"].get<std::string>());
    if (json.contains("positions")) {
      golden.positions = json["positions"].get<std::vector<int32_t>>();
    } else {
      golden.positions.resize(golden.prompt.size());
      std::iota(golden.positions.begin(), golden.positions.end(), 0);
    }
    if (json.contains("experts"))
      golden.experts = json["experts"].get<std::vector<std::vector<std::vector<int32_t>>>>();
    cases.push_back(std::move(golden));
  }
  if (cases.empty()) throw std::runtime_error("no golden cases for " + model);
  return cases;
}

double half_precision_error(const std::string& model) {
  const Json goldens = read_goldens(model);
  if (!goldens.contains("half")) {
    // The same weights in another format point at the logits of the first, and share its error.
    const std::filesystem::path logits = goldens["cases"][0].value("logits", "");
    if (logits.has_parent_path()) return half_precision_error(logits.parent_path().filename());
  }
  double worst = 0;
  if (goldens.contains("half"))
    for (const auto& [length, error] : goldens["half"]["relative_error"].items())
      worst = std::max(worst, error.get<double>());
  return worst;
}

std::optional<GenerationRequest> ListSource::next() {
  if (next_ == requests_.size()) return std::nullopt;
  return requests_[next_++];
}

bool CollectingSink::on_token(uint64_t id, const sampling::Choice& choice) {
  answers[id].tokens.push_back(choice.token);
  answers[id].choices.push_back(choice);
  return true;
}
void CollectingSink::on_hypotheses(uint64_t id,
                                   const std::vector<sampling::Hypothesis>& best_first) {
  Answer& answer = answers[id];
  answer.hypotheses = best_first;
  for (const sampling::Choice& choice : best_first.front().choices)
    answer.tokens.push_back(choice.token);
}
void CollectingSink::on_finish(uint64_t id, FinishReason reason) { answers[id].finish = reason; }
void CollectingSink::on_refused(uint64_t id, const std::string& message) {
  answers[id].refused = message;
}
void CollectingSink::on_hidden(uint64_t id, int64_t, std::span<const float> row) {
  auto& all = answers[id].hidden;
  all.insert(all.end(), row.begin(), row.end());
}

void CollectingSink::on_logits(uint64_t id, int64_t position, std::span<const float> logits) {
  auto& all = answers[id].logits;
  if (all.size() != static_cast<size_t>(position) * logits.size())
    throw std::runtime_error("logits out of order");
  all.insert(all.end(), logits.begin(), logits.end());
}

int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

std::vector<std::vector<int32_t>> random_prompts(Random& random, int64_t count, int64_t vocab) {
  std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(count));
  for (auto& prompt : prompts) {
    prompt.resize(static_cast<size_t>(pick(random, 1, 45)));
    for (int32_t& id : prompt) id = static_cast<int32_t>(pick(random, 3, vocab - 1));
  }
  return prompts;
}

void add_random_classes(Random& random, policy::Policy& policy) {
  const auto share = [&] {
    return pick(random, 0, 2) == 0
               ? 0
               : policy.weights.host * std::uniform_real_distribution<double>(0, 1)(random);
  };
  const auto place = [&] {
    return pick(random, 0, 1) == 0 ? policy::AttentionPlace::kHost
                                   : policy::AttentionPlace::kDevice;
  };
  policy.inplace_host_fraction = share();
  policy.host_attention_tokens = pick(random, 0, 1) == 0 ? 0 : pick(random, 1, 12);
  int64_t from = 1;
  for (int64_t more = pick(random, 1, 3); more > 0; --more) {
    from += pick(random, 1, 25);
    const int64_t tokens = pick(random, 0, 1) == 0 ? 0 : pick(random, 1, policy.micro_batch_tokens);
    policy.larger_passes.push_back({from, share(), place(), tokens});
  }
}

std::string test_name(std::string fixture) {
  for (char& c : fixture)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return fixture;
}

std::vector<GenerationRequest> greedy_requests(const std::vector<std::vector<int32_t>>& prompts,
                                               int max_tokens) {
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest& request = requests.emplace_back();
    request.id = i;
    request.prompt = prompts[i];
    request.params.temperature = 0;
    request.params.max_tokens = max_tokens;
    request.params.ignore_eos = true;
  }
  return requests;
}

EngineOptions options_for(const std::vector<GenerationRequest>& requests) {
  EngineOptions options;
  options.memory_budget_bytes = 64 * kMiB;
  options.workload.sequences = 0;
  for (const GenerationRequest& request : requests) {
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t total =
        prompt + (request.generates() && !request.score_prompt ? request.params.max_tokens : 0);
    options.workload.max_prompt_tokens = std::max(options.workload.max_prompt_tokens, prompt);
    options.workload.max_total_tokens = std::max(options.workload.max_total_tokens, total);
    const int64_t beams = request.params.num_beams;
    options.workload.sequences += beams;
    options.workload.beams = std::max(options.workload.beams, beams);
    options.workload.total_tokens += beams * total;
  }
  return options;
}

bool has_8_bit_inputs(const std::string& name) {
  return name.ends_with("+a8") || name.ends_with("+f8");
}

std::map<uint64_t, Answer> run_all(const std::string& model, EngineOptions options,
                                   std::vector<GenerationRequest> requests) {
  if (model.ends_with("+a8")) options.activations = kernels::ActivationFormat::kInt8;
  if (model.ends_with("+f8")) options.activations = kernels::ActivationFormat::kFp8;
  const auto engine = Engine::open(fixture_model(model), std::move(options));
  ListSource source(std::move(requests));
  CollectingSink sink;
  engine->generate(source, sink);
  return std::move(sink.answers);
}

}  // namespace sluice::testing
