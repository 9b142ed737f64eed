#include "policy/profile.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "tests/policy/machine_fixture.h"

namespace sluice::policy {
namespace {

TEST(Profile, ShippedOnesAreValidAndSurviveTheirJson) {
  const auto names = shipped_profile_names();
  EXPECT_GE(names.size(), 12u);
  for (const std::string& name : names) {
    const auto profile = shipped_profile(name);
    ASSERT_TRUE(profile) << name;
    EXPECT_NO_THROW(validate(*profile)) << name;
    EXPECT_TRUE(profile->device) << name;
    const std::string json = profile_to_json(*profile);
    EXPECT_EQ(profile_to_json(parse_profile(json, name)), json) << name;
    EXPECT_GT(profile->link.to_device.value, 0);
  }
  EXPECT_FALSE(shipped_profile("t5"));
}

TEST(Profile, EveryNumberOfAShippedProfileSaysWhereItComesFrom) {
  for (const std::string& name : shipped_profile_names()) {
    const Profile profile = *shipped_profile(name);
    const auto said = [&](const Figure& figure, const char* what) {
      EXPECT_FALSE(figure.note.empty()) << name << " " << what;
      EXPECT_NE(figure.source, FigureSource::kMeasured) << name << " " << what;
    };
    for (const Processor* processor : {&*profile.device, &profile.host}) {
      said(processor->memory_read, "memory");
      for (const MatmulRate& rate : processor->matmul) said(rate.flops, "products");
      for (const AttentionRate& rate : processor->attention) {
        said(rate.decode_bytes, "decode");
        said(rate.prefill_flops, "prefill");
        said(rate.decode_flops, "shared decode");
      }
      said(processor->launch_seconds, "launch");
    }
    for (const Disk& disk : profile.disks) {
      said(disk.read, "read");
      said(disk.write, "write");
    }
    said(profile.link.to_device, "up");
    said(profile.link.both_share, "both");
  }
}

TEST(Profile, ProductsFollowTheTableAndTheMemory) {
  Processor processor = plain_machine(false).host;
  const WeightFormat bf16 = WeightFormat::plain(DType::kBF16);
  processor.matmul = {{bf16, 1, 1024, 1024, {1e10}},
                      {bf16, 16, 1024, 1024, {1e11}},
                      {bf16, 256, 1024, 1024, {1e12}},
                      {bf16, 1, 64, 64, {5e9}}};
  processor.memory_read.value = 1e15;
  processor.launch_seconds.value = 0;
  const double flops = 2.0 * 1024 * 1024;
  EXPECT_DOUBLE_EQ(matmul_seconds(processor, DType::kBF16, 1, 1024, 1024), flops / 1e10);
  EXPECT_DOUBLE_EQ(matmul_seconds(processor, DType::kBF16, 16, 1024, 1024), 16 * flops / 1e11);
  EXPECT_DOUBLE_EQ(matmul_seconds(processor, DType::kBF16, 4096, 1024, 1024), 4096 * flops / 1e12)
      << "flat beyond the end";
  EXPECT_NEAR(matmul_seconds(processor, DType::kBF16, 4, 1024, 1024),
              4 * flops / std::sqrt(1e10 * 1e11), 1e-9)
      << "half-way between on the log scale";
  double before = 0;
  for (int64_t m = 1; m < 600; ++m) {
    const double rate =
        static_cast<double>(m) * flops / matmul_seconds(processor, DType::kBF16, m, 1024, 1024);
    EXPECT_GE(rate, before * (1 - 1e-12)) << m;
    before = rate;
  }
  EXPECT_DOUBLE_EQ(matmul_seconds(processor, DType::kBF16, 1, 60, 60), 2.0 * 60 * 60 / 5e9)
      << "the nearest size's rows";
  EXPECT_DOUBLE_EQ(matmul_seconds(processor, DType::kF16, 1, 1024, 1024), flops / 1e10)
      << "a type as wide";
  EXPECT_EQ(matmul_seconds(processor, DType::kBF16, 0, 1024, 1024), 0);
  EXPECT_EQ(matmul_seconds(processor, DType::kBF16, 1, 0, 1024), 0);
  processor.memory_read.value = 1e9;
  EXPECT_DOUBLE_EQ(matmul_seconds(processor, DType::kBF16, 1, 1024, 1024), 1024 * 1024 * 2 / 1e9)
      << "bound by the bytes of W";
  processor.launch_seconds.value = 0.5;
  EXPECT_DOUBLE_EQ(matmul_seconds(processor, DType::kBF16, 1, 1024, 1024),
                   0.5 + 1024 * 1024 * 2 / 1e9);
}

// Codes are a quarter of the bytes; the arithmetic is what it is.
TEST(Profile, QuantisedProductsWithoutRowsOfTheirOwnKeepToTheArithmetic) {
  const WeightFormat int4 = *parse_weight_format("int4");
  for (const std::string& name : shipped_profile_names()) {
    const Profile profile = *shipped_profile(name);
    for (const Processor* processor :
         {&profile.host, profile.device ? &*profile.device : &profile.host}) {
      double peak = 0;
      for (const MatmulRate& row : processor->matmul) peak = std::max(peak, row.flops.value);
      double before = 0;
      for (int64_t m = 1; m <= 4096; m = m < 70 ? m + 1 : m * 2) {
        const double seconds = matmul_seconds(*processor, int4, false, m, 8192, 8192);
        const double flops = 2.0 * static_cast<double>(m) * 8192 * 8192;
        EXPECT_GE(seconds, flops / peak) << name << ", " << m << " rows";
        EXPECT_GE(seconds, 8192.0 * 8192 / 2 / processor->memory_read.value) << name << " " << m;
        // One row more is not another world: 16 took 26 s and 17 took 261.
        if (m > 1 && m < 65) {
          EXPECT_LT(seconds, before * 1.5) << name << ", " << m << " rows";
        }
        before = seconds;
      }
    }
  }
}

TEST(Profile, RowsThatReadingPlainWeightsBoundSayNothingOfCodes) {
  Processor processor = plain_machine(false).host;
  processor.threads = 8;
  processor.memory_read.value = 1e11;
  processor.launch_seconds.value = 0;
  const WeightFormat bf16 = WeightFormat::plain(DType::kBF16);
  // Bound by memory up to 16 rows, as measured on CPUs; arithmetic from 64 on.
  processor.matmul = {{bf16, 1, 1024, 1024, {1e11}},
                      {bf16, 16, 1024, 1024, {16e11}},
                      {bf16, 64, 1024, 1024, {2e12}}};
  const WeightFormat int4 = *parse_weight_format("int4");
  const double size = 1024.0 * 1024;
  const auto seconds = [&](int64_t m) {
    return matmul_seconds(processor, int4, false, m, 1024, 1024);
  };
  const double codes = 1024.0 * static_cast<double>(int4.row_bytes(1024));
  EXPECT_DOUBLE_EQ(seconds(1), codes / 1e11);
  EXPECT_DOUBLE_EQ(seconds(16), 32 * size / 2e12);
  EXPECT_DOUBLE_EQ(seconds(64), 128 * size / 2e12);
}

TEST(Profile, ProductsOfEightBitActivationsHaveRatesOfTheirOwn) {
  Processor processor = plain_machine(false).host;
  const WeightFormat fp8 = *parse_weight_format("fp8");
  processor.matmul = {{WeightFormat::plain(DType::kBF16), 1, 64, 64, {1e9}},
                      {fp8, 1, 64, 64, {2e9}},
                      {*parse_weight_format("int8-g64"), 1, 64, 64, {3e9}, true}};
  processor.memory_read.value = 1e15;
  processor.launch_seconds.value = 0;
  const double flops = 2.0 * 64 * 64;
  const auto seconds = [&](const char* format, bool is_eight_bit) {
    return matmul_seconds(processor, *parse_weight_format(format), is_eight_bit, 1, 64, 64);
  };
  EXPECT_DOUBLE_EQ(seconds("int8", true), flops / 3e9);
  EXPECT_DOUBLE_EQ(seconds("fp8", true), flops / 2e9) << "as with 16 bits where it lacks them";
  processor.matmul.push_back({fp8, 1, 64, 64, {4e9}, true});
  EXPECT_DOUBLE_EQ(seconds("fp8", true), flops / 4e9);
  EXPECT_DOUBLE_EQ(seconds("fp8", false), flops / 2e9);
  EXPECT_DOUBLE_EQ(seconds("fp8-g64", true), flops / 2e9) << "groups are multiplied in 16 bits";
  EXPECT_DOUBLE_EQ(matmul_seconds(processor, WeightFormat::plain(DType::kBF16), true, 1, 64, 64),
                   flops / 1e9)
      << "of plain weights there are none";
}

TEST(Profile, KTypesAreAsFastAsThoseLikeThem) {
  Processor processor = plain_machine(false).host;
  const auto row = [](const char* format, double flops, bool is_eight_bit) {
    return MatmulRate{*parse_weight_format(format), 64, 1024, 1024, {flops}, is_eight_bit};
  };
  processor.matmul = {row("bf16", 1e9, false), row("int4-g64", 2e9, false),
                      row("int4-g64", 3e9, true)};
  processor.memory_read.value = 1e15;
  processor.launch_seconds.value = 0;
  const double flops = 2.0 * 64 * 1024 * 1024;
  const auto expect = [&](double rate, bool is_eight_bit, std::vector<const char*> formats) {
    for (const char* format : formats)
      EXPECT_DOUBLE_EQ(
          matmul_seconds(processor, *parse_weight_format(format), is_eight_bit, 64, 1024, 1024),
          flops / rate)
          << format << is_eight_bit;
  };
  const std::vector<const char*> one_plane{"q4_k", "q2_k", "q4_1"};
  const std::vector<const char*> two_planes{"q6_k", "q3_k", "q5_k", "q5_1", "iq1", "iq2"};
  for (const auto& all : {one_plane, two_planes}) {
    expect(2e9, false, all);
    expect(3e9, true, all);
  }
  expect(2e9, false, {"q4_0"});  // as int4
  expect(3e9, true, {"q4_0"});
  processor.matmul.push_back(row("q4_k", 4e9, false));
  processor.matmul.push_back(row("q6_k", 5e9, false));
  processor.matmul.push_back(row("q6_k", 6e9, true));
  expect(4e9, false, one_plane);
  expect(3e9, true, one_plane);
  expect(5e9, false, two_planes);
  expect(6e9, true, two_planes);
  processor.matmul.push_back(row("q2_k", 7e9, false));
  expect(7e9, false, {"q2_k"});
  expect(4e9, false, {"q4_k", "q4_1"});
}

TEST(Profile, ReadsWhatEightBitActivationsWereCalled) {
  Profile profile = *shipped_profile("t4");
  profile.host.matmul.push_back({*parse_weight_format("int8"), 1, 64, 64, {3e9}, true});
  std::string json = profile_to_json(profile);
  const std::string now = "eight_bit_activations";
  const size_t at = json.find(now);
  ASSERT_NE(at, std::string::npos);
  json.replace(at, now.size(), "int8_activations");
  EXPECT_EQ(profile_to_json(parse_profile(json, "old")), profile_to_json(profile));
}

TEST(Profile, WhatAGpuWasMeasuredAtIsKept) {
  Profile profile = *shipped_profile("t4");
  EXPECT_EQ(profile_to_json(profile).find("conditions"), std::string::npos);
  profile.device->conditions = "SM 1980 MHz, 61 C";
  const Profile read = parse_profile(profile_to_json(profile), "test");
  EXPECT_EQ(read.device->conditions, "SM 1980 MHz, 61 C");
  EXPECT_EQ(read.host.conditions, "");
}

TEST(Profile, DecodeAttentionTakesTheLongerOfBytesAndOperations) {
  Processor processor = plain_machine(false).host;
  processor.attention = {{DType::kBF16, {1e9}, {1e12}, {1e10}}};
  EXPECT_DOUBLE_EQ(decode_attention_seconds(processor, DType::kBF16, 2e9, 1e9), 2);
  EXPECT_DOUBLE_EQ(decode_attention_seconds(processor, DType::kBF16, 2e9, 4e10), 4);
  EXPECT_DOUBLE_EQ(prefill_attention_seconds(processor, DType::kF32, 3e12), 3) << "any type";
  // Keys in int8 beside values in int4 go as int8 in a profile that has no row of them.
  processor.attention.push_back({KvFormat(KvEncoding::kInt8), {2e9}, {2e12}, {4e10}});
  EXPECT_DOUBLE_EQ(decode_attention_seconds(processor, kInt8KeysInt4Values, 2e9, 1e9), 1);
  EXPECT_DOUBLE_EQ(prefill_attention_seconds(processor, kInt8KeysInt4Values, 4e12), 2);
  processor.attention.push_back({kInt8KeysInt4Values, {4e9}, {4e12}, {4e10}});
  EXPECT_DOUBLE_EQ(decode_attention_seconds(processor, kInt8KeysInt4Values, 2e9, 1e9), 0.5);
}

std::string refusal(const std::function<void(nlohmann::ordered_json&)>& change) {
  auto json = nlohmann::ordered_json::parse(profile_to_json(plain_machine(true)));
  change(json);
  try {
    parse_profile(json.dump(), "bad.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUser);
    EXPECT_FALSE(error.mend().empty());
    return error.text();
  }
  return "accepted";
}

TEST(Profile, RatesThatNoMachineHasAreRefusedWithTheirUnit) {
  using Json = nlohmann::ordered_json;
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
  };
  const auto set_read = [](double rate) {
    return [rate](Json& j) { j["disks"][0]["read_bytes_per_second"] = rate; };
  };
  has(refusal(set_read(6.5)), "disk.read is 6.5 bytes a second");
  has(refusal(set_read(6.5e16)), "disk.read");
  has(refusal([](Json& j) { j["host"]["memory_read_bytes_per_second"] = 80; }),
      "host.memory_read is 80 bytes");
  has(refusal([](Json& j) { j["host"]["matmul"][0]["flops"] = 1.5; }), "operations a second");
  has(refusal([](Json& j) { j["link"]["to_host_bytes_per_second"] = 12; }), "link.to_host");
  has(refusal([](Json& j) { j["disks"][0]["mixed_read_bytes_per_second"] = 3e9; }),
      "more than the disk's");
  has(refusal([](Json& j) { j["disks"][0]["busy_read_bytes_per_second"] = 3e9; }),
      "more than the disk's");
}

TEST(Profile, AMachineMayHaveNoDisk) {
  Profile machine = plain_machine(true);
  machine.disks.clear();
  machine.disk_bytes = 0;
  const Profile read = parse_profile(profile_to_json(machine), "x");
  EXPECT_TRUE(read.disks.empty());
  EXPECT_EQ(profile_to_json(read), profile_to_json(machine));
}

TEST(Profile, AMachineMayHaveSeveralDevices) {
  Profile machine = plain_machine(true);
  machine.device->name = "first";
  OtherDevice other{*machine.device, machine.link, int64_t{48} << 30};
  other.processor.name = "second";
  other.link.to_device.value = 2e9;
  machine.more_devices = {other};
  const Profile read = parse_profile(profile_to_json(machine), "x");
  EXPECT_EQ(profile_to_json(read), profile_to_json(machine));
  EXPECT_EQ(read.with_device(0).device->name, "first");
  const Profile second = read.with_device(1);
  EXPECT_EQ(second.device->name, "second");
  EXPECT_EQ(second.device_bytes, int64_t{48} << 30);
  EXPECT_EQ(second.link.to_device.value, 2e9);
  EXPECT_EQ(second.with_device(1).device->name, "first") << "none is lost";
  EXPECT_THROW(read.with_device(2), Error);
  EXPECT_THROW(read.with_device(-1), Error);
  EXPECT_THROW(plain_machine(false).with_device(0), Error);

  using Json = nlohmann::ordered_json;
  const auto mended = [&](const std::function<void(Json&)>& change) {
    Json json = Json::parse(profile_to_json(machine));
    change(json);
    try {
      parse_profile(json.dump(), "x");
    } catch (const Error& error) {
      return error.text();
    }
    return std::string("accepted");
  };
  EXPECT_NE(mended([](Json& j) {
              j["more_devices"][0]["link"]["both_share"] = 2;
            }).find("more_devices[0].link.both_share"),
            std::string::npos);
  EXPECT_NE(mended([](Json& j) {
              j["more_devices"][0].erase("device_memory_bytes");
            }).find("more_devices[0].device_memory_bytes"),
            std::string::npos);
  EXPECT_NE(mended([](Json& j) {
              j["more_devices"][0]["device"]["matmul"] = Json::array();
            }).find("more_devices[0].device.matmul"),
            std::string::npos);
  EXPECT_NE(mended([](Json& j) {
              j.erase("device");
              j.erase("link");
              j.erase("device_memory_bytes");
            }).find("more_devices"),
            std::string::npos);
}

TEST(Profile, AStripeIsAsFastAsItsSlowestDiskAllowsIt) {
  Profile profile = plain_machine(false);
  profile.disks.push_back(profile.disks.front());
  EXPECT_DOUBLE_EQ(profile.disk_read(), 2e9);
  profile.disks.back().read.value = 4e9;
  profile.disks.back().write.value = 1e8;
  EXPECT_DOUBLE_EQ(profile.disk_read(), 2e9) << "each has half of the bytes";
  EXPECT_DOUBLE_EQ(profile.disk_write(), 2e8);
}

TEST(Profile, ShippedCardsHaveTheMemoryThatProgramsGet) {
  for (const std::string& name : shipped_profile_names()) {
    const Profile profile = *shipped_profile(name);
    EXPECT_NO_THROW(validate(profile)) << name;
    if (name == "flexgen-t4") continue;  // as its cost model has it
    // The name says how many GiB (of the H200 GB) there are.
    const std::string& title = profile.device->name;
    const double gib = std::stod(title.substr(title.rfind(' ', title.size() - 4) + 1));
    const double bytes = gib * (gib > 100 ? 1e9 : 1024.0 * 1024 * 1024);
    EXPECT_LT(static_cast<double>(profile.device_bytes), bytes * (gib > 100 ? 1.07 : 1)) << title;
    EXPECT_GT(static_cast<double>(profile.device_bytes), 0.9 * bytes) << title;
  }
  EXPECT_EQ(shipped_profile("t4")->host_bytes, int64_t{204} << 30);
}

TEST(Profile, BadOnesAreRefusedByName) {
  using Json = nlohmann::ordered_json;
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
  };
  has(refusal([](Json& j) { j["disks"][0]["read_bytes_per_second"] = 0; }), "disk.read");
  has(refusal([](Json& j) { j["disks"][0]["write_bytes_per_second"]["value"] = -1; }),
      "disk.write");
  has(refusal([](Json& j) { j["disks"] = Json::array(); }), "there is no disk");
  has(refusal([](Json& j) { j.erase("disks"); }), "disks is missing");
  has(refusal([](Json& j) { j["disks"][0].erase("latency_seconds"); }),
      "disks[0].latency_seconds is missing");
  has(refusal([](Json& j) { j["host"]["matmul"] = Json::array(); }), "host.matmul");
  has(refusal([](Json& j) { j["host"]["matmul"][0]["m"] = 0; }), "host.matmul");
  has(refusal([](Json& j) { j["device"]["attention"][0]["prefill_flops"] = "fast"; }),
      "prefill_flops");
  has(refusal([](Json& j) { j["link"]["both_share"] = 1.5; }), "both_share");
  has(refusal([](Json& j) { j["link"]["to_device_bytes_per_second"]["source"] = "a friend"; }),
      "source");
  has(refusal([](Json& j) { j["host_memory_bytes"] = 0; }), "host_memory_bytes");
  has(refusal([](Json& j) { j["device_memory_bytes"] = -5; }), "device_memory_bytes");
  has(refusal([](Json& j) { j["read_delay_seconds_per_byte"] = 1; }), "read_delay");
  has(refusal([](Json& j) { j["copy_bytes_per_second"] = -1; }), "copy_bytes_per_second");
  has(refusal([](Json& j) { j["speed"] = 9; }), "speed is not a key");
  has(refusal([](Json& j) { j.erase("link"); }), "link is missing");
  has(refusal([](Json& j) {
        j.erase("device");
        j.erase("device_memory_bytes");
      }),
      "link has no device");
  has(refusal([](Json& j) { j["host"]["speed"] = 9; }), "host.speed is not a key");
  has(refusal([](Json& j) { j["host"]["matmul"][0]["weights"] = "int9"; }), "element type");
  EXPECT_THROW(parse_profile("[1]", "x"), Error);
  EXPECT_THROW(parse_profile("{", "x"), Error);
  EXPECT_THROW(parse_profile(std::string(100000, '['), "x"), Error);
}

}  // namespace
}  // namespace sluice::policy
