// The proof that two processes belong to one start, and where they find its secret.
#include <orthant/handshake.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <orthant/error.h>

#include "core/base/keyed_hash.h"
#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::handshake_test {
namespace {

using orthant::test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Side = Handshake::Side;

const std::string secret = "0123456789abcdef0123456789abcdef";
const std::string other_secret = "0123456789abcdef0123456789abcdeF";

TEST(Handshake, BothProveThemselvesInPiecesOfAnySize) {
  for (const std::size_t piece : {1u, 7u, 1000u}) {
    Handshake listens(Side::listens, secret), connects(Side::connects, secret);
    std::string to_connecting = listens.first(), to_listening = connects.first();
    EXPECT_EQ(to_listening, "");
    for (int round = 0; round < 500 && !(listens.done() && connects.done()); ++round) {
      if (!connects.done() && !to_connecting.empty()) {
        to_listening += connects.take(to_connecting.substr(0, piece));
        to_connecting.erase(0, piece);
      }
      if (!listens.done() && !to_listening.empty()) {
        to_connecting += listens.take(to_listening.substr(0, piece));
        to_listening.erase(0, piece);
        to_connecting += listens.done() ? "welcome" : "";
      }
    }
    ASSERT_TRUE(listens.done() && connects.done()) << piece;
    EXPECT_EQ(listens.rest(), "");
    EXPECT_EQ(connects.rest() + to_connecting, "welcome");
  }
}

TEST(Handshake, AnotherSecretIsNotBelievedByEitherSide) {
  Handshake listens(Side::listens, secret), stranger(Side::connects, other_secret);
  const std::string said = stranger.take(listens.first());
  EXPECT_THAT(error_of([&] { listens.take(said); }), AllOf(HasSubstr("another secret"), Not(HasSubstr(secret))));
  EXPECT_FALSE(listens.done());

  Handshake connects(Side::connects, secret), impostor(Side::listens, other_secret);
  connects.take(impostor.first());
  EXPECT_THAT(error_of([&] { connects.take(std::string(32, 'x')); }), HasSubstr("another secret"));
}

TEST(Handshake, WhatWasHeardOnceIsOfNoUseAgain) {
  Handshake first(Side::listens, secret), again(Side::listens, secret), connects(Side::connects, secret);
  const std::string heard = connects.take(first.first());
  EXPECT_NE(error_of([&] { again.take(heard); }), "no error");
  EXPECT_EQ(error_of([&] { connects.take(first.take(heard)); }), "no error");
  EXPECT_EQ(heard.find(secret), std::string::npos);
  // Nor is a proof of one side one of the other's.
  Handshake victim(Side::connects, secret);
  const std::string mirrored = victim.take("orthant1" + std::string(16, 'n'));
  EXPECT_NE(error_of([&] { victim.take(mirrored.substr(mirrored.size() - 32)); }), "no error");
}

TEST(Handshake, OtherProtocolsAreRecognised) {
  for (const auto side : {Side::listens, Side::connects}) {
    Handshake here(side, secret);
    EXPECT_THAT(error_of([&] { here.take("SSH-2.0-OpenSSH_9.2\r\n"); }), HasSubstr("not Orthant"));
  }
}

TEST(KeyedHash, IsHmacSha256) {  // RFC 4231, test case 2
  EXPECT_EQ(to_hex(keyed_hash("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_TRUE(same_bytes("abc", "abc"));
  EXPECT_FALSE(same_bytes("abc", "abd"));
  EXPECT_FALSE(same_bytes("abc", "abcd"));
}

TEST(Secret, IsTheValueOrElseThatOfAPrivateFile) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "secret";
  EXPECT_EQ(read_secret({secret, file}), secret);
  EXPECT_EQ(read_secret({"", file}), std::nullopt);
  std::ofstream(file) << secret;
  chmod(file.c_str(), 0600);
  EXPECT_EQ(read_secret({"", file}), secret);
  EXPECT_THAT(error_of([] { read_secret({}); }), HasSubstr("set ORTHANT_SECRET to the same 32 or more"));
  EXPECT_THAT(error_of([] {
                read_secret({"hunter2", {}});
              }),
              AllOf(HasSubstr("a secret of 7 characters"), Not(HasSubstr("hunter2"))));
}

TEST(Secret, AFileThatOthersMayReadOrOwnIsRefused) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "secret", link = folder.path() / "link";
  std::ofstream(file) << secret;
  const auto refusal = [](const std::filesystem::path& path) { return error_of([&] { read_secret({"", path}); }); };
  chmod(file.c_str(), 0640);
  EXPECT_THAT(refusal(file), HasSubstr("a file of this user that nobody else may read"));
  chmod(file.c_str(), 0600);
  std::filesystem::create_symlink(file, link);
  EXPECT_THAT(refusal(link), HasSubstr("cannot read the secret"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("a file of this user"));
  if (geteuid() == 0) {
    ASSERT_EQ(chown(file.c_str(), 65534, 65534), 0);
    EXPECT_THAT(refusal(file), HasSubstr("a file of this user that nobody else may read"));
  }
}

}  // namespace
}  // namespace orthant::launch_test::handshake_test
