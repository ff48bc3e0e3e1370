// Files of published runs: what is no CSV, or holds what is no number, is refused by place.
#include "bench/hindcast/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "bench/hindcast/row.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"
#include "tests/support/run_supervisor.h"

namespace orthant::cost_test {
namespace {

using hindcast::CsvFile;
using testing::HasSubstr;

std::string csv_refusal(const std::string& text) {
  return test::error_of([&] { CsvFile(text, "f.csv"); });
}

TEST(Csv, FieldsAreReadAsTheyWereWritten) {
  const CsvFile file("a,b,\"c,d\"\r\n1, two ,\"say \"\"hi\"\"\nthere\"\n\n3,,x\n", "f.csv");
  ASSERT_EQ(file.rows(), 2u);
  EXPECT_EQ(file.count(0, "a"), 1);
  EXPECT_EQ(file.at(0, "b"), "two");
  EXPECT_EQ(file.at(0, "c,d"), "say \"hi\"\nthere");
  EXPECT_EQ(file.number(1, "b"), std::nullopt);
  EXPECT_EQ(file.at(1, "none"), "");
  EXPECT_EQ(file.place(1), "f.csv, line 5");
}

TEST(Csv, BrokenFilesAreRefusedByLine) {
  EXPECT_EQ(csv_refusal("a,b\n1,2\n"), "no error");
  EXPECT_THAT(csv_refusal(""), HasSubstr("f.csv: empty"));
  EXPECT_THAT(csv_refusal("a,b\n1,2\n1,2,3\n"), HasSubstr("f.csv, line 3: 3 fields, and the header has 2"));
  EXPECT_THAT(csv_refusal("a,b,a\n"), HasSubstr("two columns are named 'a'"));
  EXPECT_THAT(csv_refusal("a,b\n1,\"2\n"), HasSubstr("line 2: a quote is not closed"));
}

TEST(Csv, WhatIsNoNumberIsRefusedByColumn) {
  const CsvFile file("n,x\nmany,1\n2.5,nan\n-3,\n", "f.csv");
  EXPECT_THAT(test::error_of([&] { file.count(0, "n"); }),
              HasSubstr("f.csv, line 2: 'many' in column 'n' is no number"));
  EXPECT_THAT(test::error_of([&] { file.count(1, "n"); }),
              HasSubstr("must be a whole number of at least 1, and is 2.5"));
  EXPECT_THAT(test::error_of([&] { file.number(1, "x"); }), HasSubstr("'nan' in column 'x' is no number"));
  EXPECT_THAT(test::error_of([&] { file.count(2, "n"); }), HasSubstr("and is -3"));
  EXPECT_THAT(test::error_of([&] { file.count(2, "x"); }), HasSubstr("column 'x' is empty"));
  EXPECT_THAT(test::error_of([&] { file.count(2, "y"); }), HasSubstr("column 'y' is missing"));
}

class RowFiles : public testing::Test {
 protected:
  hindcast::Rows read(const std::string& text) const {
    const std::string path = (folder_.path() / "rows.csv").string();
    std::ofstream(path) << text;
    return hindcast::read_rows(path, paths::source("bench/hindcast/data"));
  }
  launch_test::TemporaryFolder folder_;
};

const char* const header =
    "id,source,gpu,n,model,L,h,ffn,heads,kv,seq,vocab,E,k,d_exp,shared,tp,pp,vpp,cp,ep,etp,zero,gbs,mbs,recompute,"
    "dtype,metric,value\n";

TEST_F(RowFiles, OfUnknownColumnsAreRefused) {
  EXPECT_THAT(test::error_of([&] { read("a,b\n1,2\n"); }), HasSubstr("these columns are of none of the four kinds"));
  EXPECT_THAT(test::error_of([&] { hindcast::read_rows("/nowhere.csv", ""); }), HasSubstr("there is no such file"));
}

TEST_F(RowFiles, RowsThatCannotBeScoredAreTold) {
  const hindcast::Rows rows =
      read(std::string(header) +
           "1,S T1,A100,8,m,48,6144,,64,64,2048,51200,,,,,8,1,,,,,,4,4,full,fp16,step s,1.42\n"
           "2,S T1,TPU,8,m,48,6144,,64,64,2048,51200,,,,,8,1,,,,,,4,4,full,fp16,step s,1.42\n"
           "3,S T1,A100,8,m,48,6144,,64,64,2048,51200,,,,,8,1,,,,,,4,4,full,fp16,furlongs,1.42\n"
           "4,S T1,A100,8,m,48,6144,,64,64,2048,51200,,,,,16,1,,,,,,4,4,full,fp16,step s,1.42\n"
           "5,S T1,A100,?,m,48,6144,,64,64,2048,51200,,,,,8,1,,,,,,4,4,full,fp16,step s,1.42\n"
           "6,S T1,A100,8,m,48,6144,,64,64,2048,51200,,,,,8,1,,,,,,4,4,full,fp16,step s,OOM\n");
  ASSERT_EQ(rows.scored.size(), 2u);
  EXPECT_EQ(*rows.scored[0].seconds, 1.42);
  EXPECT_EQ(rows.scored[0].held, "S");
  EXPECT_TRUE(rows.scored[1].out_of_memory);
  EXPECT_FALSE(rows.scored[1].seconds.has_value());
  ASSERT_EQ(rows.not_scored.size(), 4u);
  EXPECT_THAT(rows.not_scored[0].why, HasSubstr("no machine file for 'TPU'"));
  EXPECT_THAT(rows.not_scored[1].why, HasSubstr("furlongs"));
  EXPECT_THAT(rows.not_scored[2].why, HasSubstr("no multiple of tensor 16"));
  EXPECT_THAT(rows.not_scored[3].why, HasSubstr("column 'n' is empty"));
}

TEST_F(RowFiles, MetricsAreTurnedIntoSeconds) {
  const std::string row = "1,S,A100,8,m,48,6144,,64,64,2048,51200,,,,,8,1,,,,,,4,4,full,fp16,";
  const double step = *read(header + row + "step s,1.42\n").scored[0].seconds;
  EXPECT_NEAR(*read(header + row + "step ms,1420\n").scored[0].seconds, step, 1e-9);
  // 96 B s l h^2 (...): 137.5 TFLOP/s on each of 8 (Narayanan et al., equation 3, and as Korthikanti et al. report).
  const double h = 6144, s = 2048, flops = 96 * 4 * s * 48 * h * h * (1 + s / (6 * h) + 51200 / (16.0 * 48 * h));
  EXPECT_NEAR(*read(header + row + "TFLOP/s/GPU (HFU kind),100\n").scored[0].seconds, flops / 8e14, 1e-6);
  const double model = 72 * 4 * s * 48 * h * h * (1 + s / (6 * h) + 51200 / (12.0 * 48 * h));
  EXPECT_NEAR(*read(header + row + "MFU %,50\n").scored[0].seconds, model / (8 * 156e12), 1e-6);
  EXPECT_NEAR(*read(header + row + "tokens/s/GPU,1000\n").scored[0].seconds, 4 * s / 8000, 1e-9);
}

}  // namespace
}  // namespace orthant::cost_test
