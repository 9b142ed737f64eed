#pragma once
// All of the library:
//
//   const auto model = sluice::Model::open("folder");
//   sluice::Generator generator(sluice::Plan::find(model, options));
//   generator.generate(prompt, sampling, [](int32_t token) { ...; return true; });
#include "sluice/batch.h"
#include "sluice/chat.h"
#include "sluice/convert.h"
#include "sluice/error.h"
#include "sluice/generator.h"
#include "sluice/model.h"
#include "sluice/options.h"
#include "sluice/plan.h"
#include "sluice/profile.h"
#include "sluice/session.h"
#include "sluice/stats.h"
#include "sluice/tokenizer.h"
