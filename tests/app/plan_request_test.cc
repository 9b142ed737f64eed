// What the search is told of a workload that is known only in sums.
#include "src/app/plan_request.h"

#include <gtest/gtest.h>

#include "src/app/generate_text.h"

namespace sluice::app {
namespace {

TEST(JobOf, KeepsToTheLongestSequencesProportion) {
  const policy::JobShape job =
      job_of({.sequences = 4, .max_prompt_tokens = 30, .max_total_tokens = 40});
  EXPECT_EQ(job.sequences, 4);
  EXPECT_DOUBLE_EQ(job.prompt_tokens, 30);
  EXPECT_DOUBLE_EQ(job.new_tokens, 10);
  EXPECT_EQ(job.max_new_tokens, 10);
}

TEST(JobOf, TakesThePromptsShareWhereItIsKnown) {
  policy::Workload workload;
  add_to_workload(workload, 100, 4);
  add_to_workload(workload, 4, 100);
  add_to_workload(workload, 4, 100);
  const policy::JobShape job = job_of(workload);
  EXPECT_DOUBLE_EQ(job.prompt_tokens, 36);
  EXPECT_DOUBLE_EQ(job.new_tokens, 68);
  // A server's: any one may be as long as the context, and generate as much as it was asked.
  const policy::JobShape served = job_of({.sequences = 8,
                                          .max_prompt_tokens = 512,
                                          .max_total_tokens = 512,
                                          .total_tokens = 1024,
                                          .prompt_tokens = 512});
  EXPECT_DOUBLE_EQ(served.prompt_tokens, 64);
  EXPECT_DOUBLE_EQ(served.new_tokens, 64);
}

TEST(PlanRequest, NumbersForPeopleHaveNoExponent) {
  EXPECT_EQ(format_three_digits(0), "0");
  EXPECT_EQ(format_three_digits(0.0000412345), "0.0000412");
  EXPECT_EQ(format_three_digits(0.0123), "0.0123");
  EXPECT_EQ(format_three_digits(12.34), "12.3");
  EXPECT_EQ(format_three_digits(999.4), "999");
  EXPECT_EQ(format_three_digits(999.6), "1000");
  EXPECT_EQ(format_three_digits(1690.2), "1690");
}

}  // namespace
}  // namespace sluice::app
