#include "core/base/json.h"

#include <orthant/error.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

namespace orthant {
namespace {

constexpr int max_depth = 16;

std::int64_t integer(const Json& value, const char* key, const std::string& where) {
  require(value.is_number_integer() && (value.is_number_unsigned() || value.get<std::int64_t>() >= 0) &&
              value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()),
          "{}: '{}' must be a whole number from 0 to 2^63 - 1", where, key);
  return value.get<std::int64_t>();
}

// The parser quotes all that it has read of a value, which may be the rest of the file.
std::string shortened(std::string_view text) {
  constexpr std::size_t part = 120;
  if (text.size() <= 3 * part) {
    return std::string(text);
  }
  const auto whole = [&](std::size_t at) {  // not within a character
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) {
      ++at;
    }
    return at;
  };
  return fmt::format("{} ... {}", text.substr(0, whole(part)), text.substr(whole(text.size() - part)));
}

}  // namespace

Json parse_json(std::span<const std::byte> text, const std::string& where) {
  const char* begin = reinterpret_cast<const char*>(text.data());
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  // The parser keeps the last of two equal keys and recurses nowhere, but a deep value is destroyed by recursion: both
  // are refused while parsing.
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    require(depth <= max_depth, "{}: its JSON is nested deeper than {}", where, max_depth);
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const std::string key = value.get<std::string>();
      require(keys.back().insert(key).second, "{}: '{}' stands there a second time", where, key);
    }
    return true;
  };
  try {
    return Json::parse(begin, begin + text.size(), check);
  } catch (const Json::exception& e) {
    const std::string_view said = e.what(), words = said.substr(std::min(said.size(), said.find("] ") + 2));
    fail("{}: not valid JSON (damaged?): {}", where, shortened(said.starts_with('[') ? words : said));
  }
}

std::string dump_json(const Json& json, const std::string& where, int indent) {
  try {
    return json.dump(indent);
  } catch (const Json::exception& e) {
    fail("{}: a name or value is not UTF-8 text: {}", where, e.what());
  }
}

const Json& member(const Json& object, const char* key, const std::string& where) {
  require(object.is_object(), "{}: expected a JSON object", where);
  const auto it = object.find(key);
  require(it != object.end(), "{}: '{}' is missing", where, key);
  return *it;
}

std::string text_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = member(object, key, where);
  require(value.is_string(), "{}: '{}' must be a string", where, key);
  return value.get<std::string>();
}

std::int64_t integer_at(const Json& object, const char* key, const std::string& where) {
  return integer(member(object, key, where), key, where);
}

std::vector<std::int64_t> integers_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = member(object, key, where);
  require(value.is_array(), "{}: '{}' must be a list of whole numbers", where, key);
  std::vector<std::int64_t> numbers;
  for (const Json& entry : value) {
    numbers.push_back(integer(entry, key, where));
  }
  return numbers;
}

}  // namespace orthant
