// The key of an override, "model.layers" of "model.layers=4", for those that take some keys only.
#pragma once

#include <cctype>
#include <string>

namespace orthant {

// Without spaces and quotes; all of `setting` where it has no '='.
inline std::string setting_key(const std::string& setting) {
  std::string key = setting.substr(0, setting.find('='));
  std::erase_if(key, [](unsigned char c) { return std::isspace(c) != 0 || c == '"' || c == '\''; });
  return key;
}

}  // namespace orthant
