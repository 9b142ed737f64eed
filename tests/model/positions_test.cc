#include "src/model/positions.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

ModelConfig config_of(const Json& json) { return {json.dump(), "config.json"}; }

Json changed(const Json& json, const PositionWishes& wishes) {
  return Json::parse(with_positions(config_of(json), wishes).text());
}

std::string refusal(const Json& json, const PositionWishes& wishes) {
  try {
    changed(json, wishes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser) << error.what();
    return error.text() + " / " + error.mend();
  }
  return "";
}

const Json kPlain{{"max_position_embeddings", 2048}, {"rope_theta", 1e4}, {"hidden_size", 8}};

TEST(Positions, NothingWantedChangesNothing) { EXPECT_EQ(changed(kPlain, {}), kPlain); }

TEST(Positions, YarnIsWhatAConfigWouldSay) {
  EXPECT_EQ(
      changed(kPlain, {.rope_scaling = "yarn", .rope_factor = 4}),
      (Json{
          {"max_position_embeddings", 8192},
          {"rope_theta", 1e4},
          {"hidden_size", 8},
          {"rope_scaling",
           {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}}}}));
  const Json trained =
      changed(kPlain, {.rope_scaling = "yarn", .rope_factor = 4, .rope_original = 512});
  EXPECT_EQ(trained["max_position_embeddings"], 2048);
  EXPECT_EQ(trained["rope_scaling"]["original_max_position_embeddings"], 512);
}

// transformers 5 keeps theta and the share of a head beside the kind.
TEST(Positions, NewConfigsKeepWhatTheyHaveBeside) {
  const Json json{
      {"max_position_embeddings", 100},
      {"rope_parameters",
       {{"rope_type", "default"}, {"rope_theta", 5e5}, {"partial_rotary_factor", 0.5}}}};
  const Json linear = changed(json, {.rope_scaling = "linear", .rope_factor = 2.5});
  EXPECT_EQ(linear["max_position_embeddings"], 250);
  EXPECT_FALSE(linear.contains("rope_scaling"));
  EXPECT_EQ(linear["rope_parameters"]["rope_type"], "linear");
  EXPECT_EQ(linear["rope_parameters"]["rope_theta"], 5e5);
  EXPECT_EQ(linear["rope_parameters"]["partial_rotary_factor"], 0.5);
  const Json theta = changed(json, {.rope_theta = 1e6});
  EXPECT_EQ(theta["rope_parameters"]["rope_theta"], 1e6);
  EXPECT_EQ(theta["rope_parameters"]["rope_type"], "default");
  EXPECT_EQ(theta["max_position_embeddings"], 100);
}

TEST(Positions, AFactorAloneIsOfTheKindThatThereIs) {
  Json json = kPlain;
  json["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 1024}};
  const Json longer = changed(json, {.rope_factor = 8});
  EXPECT_EQ(longer["rope_scaling"]["type"], "yarn");
  EXPECT_EQ(longer["rope_scaling"]["factor"], 8.0);
  EXPECT_EQ(longer["max_position_embeddings"], 8192);
  EXPECT_EQ(changed(json, {.rope_scaling = "none"})["rope_scaling"],
            (Json{{"rope_type", "default"}}));
  EXPECT_NE(refusal(kPlain, {.rope_factor = 8}).find("`rope_scaling` yarn"), std::string::npos);
}

TEST(Positions, AWholeObjectIsTakenAsItIs) {
  const Json of_it =
      changed(kPlain, {.rope_scaling = R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                                   "high_freq_factor": 4, "original_max_position_embeddings": 64})"});
  EXPECT_EQ(of_it["rope_scaling"]["high_freq_factor"], 4);
  EXPECT_EQ(of_it["max_position_embeddings"], 512);
  EXPECT_NE(refusal(kPlain, {.rope_scaling = "{\"rope_type\": "}).find("no JSON object"),
            std::string::npos);
}

TEST(Positions, LengthsAreKeysOfTheirOwn) {
  EXPECT_EQ(changed(kPlain, {.context_tokens = 100, .sequence_tokens = 300})[kLongestKey], 300);
  const Json asked = changed(kPlain, {.context_tokens = 5000, .sequence_tokens = 300});
  EXPECT_EQ(asked[kLongestKey], 5000);
  EXPECT_EQ(asked[kContextKey], 5000);
  EXPECT_FALSE(changed(kPlain, {.sequence_tokens = 300}).contains(kContextKey));
}

TEST(Positions, SayWhatTheyCannotDo) {
  const auto expect = [](const Json& json, const PositionWishes& wishes, const char* words) {
    const std::string text = refusal(json, wishes);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  expect(kPlain, {.rope_scaling = "yarn"}, "needs `rope_factor`");
  expect(kPlain, {.rope_scaling = "spiral", .rope_factor = 2}, "not known");
  expect(kPlain, {.rope_scaling = "none", .rope_factor = 2}, "no effect");
  expect(kPlain, {.rope_scaling = "yarn", .rope_factor = -1}, "`rope_factor` -1");
  expect(kPlain, {.rope_scaling = "yarn", .rope_factor = 1e9}, "`rope_factor`");
  expect(kPlain, {.rope_theta = 0.5}, "`rope_theta` 0.5");
  expect({{"rope_theta", 1e4}}, {.rope_scaling = "yarn", .rope_factor = 2}, "`rope_original`");
  Json layered = kPlain;
  layered["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  expect(layered, {.rope_theta = 1e6}, "several kinds");
  // A value of another type is no number, and no crash.
  Json odd = kPlain;
  odd["rope_scaling"] = {{"rope_type", 7}, {"factor", "x"}};
  expect(odd, {.rope_original = 64}, "nothing to scale");
  EXPECT_EQ(changed(odd, {.rope_scaling = "yarn", .rope_factor = 2})["max_position_embeddings"],
            4096);
}

}  // namespace
}  // namespace sluice
