#include "core/base/keyed_hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <orthant/error.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace orthant {

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t have = 0; have < count;) {
    const ssize_t got = getrandom(bytes.data() + have, count - have, 0);
    if (got < 0 && errno != EINTR) {
      const int reason = errno;
      fail("the kernel gives no random bytes: {}", std::strerror(reason));
    }
    have += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

std::string keyed_hash(std::string_view key, std::string_view text) {
  std::string hash(EVP_MAX_MD_SIZE, '\0');
  unsigned int bytes = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), reinterpret_cast<unsigned char*>(hash.data()), &bytes);
  require(done != nullptr && bytes == 32, "OpenSSL cannot compute HMAC-SHA-256: is its configuration sound?");
  hash.resize(bytes);
  return hash;
}

std::string sha256_hex(std::string_view bytes) {
  std::string hash(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  const bool done = EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.data()), &size,
                               EVP_sha256(), nullptr) == 1;
  require(done, "OpenSSL cannot compute SHA-256: is its configuration sound?");
  hash.resize(size);
  return to_hex(hash);
}

bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace orthant
