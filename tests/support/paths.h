// Where the source tree and the build lie. Only paths.cpp is compiled with them: every other test object is the same in
// each checkout, so that a compiler cache serves them all.
#pragma once

#include <filesystem>
#include <string>

namespace orthant::paths {

// Absolute paths; `name` is relative to the folder.
std::string source(const std::string& name = "");
std::string build(const std::string& name = "");
std::string plugin(const std::string& file = "");  // the plugins and communicators of this build

std::filesystem::path published_model(const std::string& name);  // a folder of tests/pretrained/models
std::string out_of_tree(const std::string& name);                // the library of the plugin examples/plugins/NAME.cpp
std::string program();                                           // orthant

// A Python that may have the packages of tests/reference/requirements.txt: ORTHANT_PYTHON, or the environment that
// tests/reference/make_reference.sh makes. Empty: there is none.
std::string python();

}  // namespace orthant::paths
