#include "core/base/ordered_json.h"

#include <orthant/error.h>

#include <algorithm>
#include <set>
#include <vector>

namespace orthant {

OrderedJson parse_ordered_json(std::string_view text, const std::string& where, int deepest) {
  constexpr std::size_t most_keys = 1000;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, OrderedJson::parse_event_t event, OrderedJson& value) {
    require(depth <= deepest, "{}: its JSON is nested deeper than {}", where, deepest);
    if (event == OrderedJson::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == OrderedJson::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == OrderedJson::parse_event_t::key) {
      const std::string key = value.get<std::string>();
      require(keys.back().insert(key).second, "{}: '{}' stands there a second time", where, key.substr(0, 200));
      require(keys.back().size() <= most_keys, "{}: an object of more than {} keys", where, most_keys);
    }
    return true;
  };
  try {
    return OrderedJson::parse(text.begin(), text.end(), check);
  } catch (const OrderedJson::exception& e) {
    constexpr std::size_t longest = 300;
    const std::string_view said = e.what(), words = said.substr(std::min(said.size(), said.find("] ") + 2));
    fail("{}: not valid JSON (damaged?): {}", where, (said.starts_with('[') ? words : said).substr(0, longest));
  }
}

}  // namespace orthant
