// The card of a study: study.json in its folder. It is written before the first point runs, and after each one.
//
// It holds what another machine needs to run the study, or one point of it, again, and what came out here.
#pragma once

#include <orthant/settings.h>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/study/grid.h"
#include "bench/study/study_file.h"

namespace orthant {

enum class PointStatus { waiting, done, failed };

// Where a study comes from.
struct StudyOrigin {
  std::string command;                      // that started it
  std::string version;                      // of the program
  std::string config;                       // the resolved configuration, TOML
  nlohmann::ordered_json values = {};       // the same, without where it comes from
  nlohmann::ordered_json text = {};         // describe_text
  std::vector<std::string> overrides = {};  // of every point; the configuration has them too
  std::vector<std::string> warnings = {};   // of the points' configurations, each once
};

// Thread safety: none. Every change is on disk, whole, before the call returns. Errors of all: Error naming the file.
class StudyCard {
 public:
  // A new card with every point waiting.
  StudyCard(const std::filesystem::path& folder, const StudyFile& study, const std::vector<GridPoint>& points,
            const StudyOrigin& origin);
  // The card that lies there. Errors: ConfigError for what is no card, and for a point whose status or result no study
  // writes, naming it.
  explicit StudyCard(const std::filesystem::path& folder);

  // Refuses to go on with other points, another configuration or another text than the card's. Errors: ConfigError
  // naming the first difference.
  void require_same(const std::vector<GridPoint>& points, const StudyOrigin& now) const;

  std::size_t size() const { return document_["points"].size(); }
  std::string id(std::size_t point) const { return document_["points"][point]["id"]; }
  PointStatus status(std::size_t point) const;
  // Of a point that is done; may lack what was never measured.
  const nlohmann::ordered_json& result(std::size_t point) const { return document_["points"][point]["result"]; }
  double seconds() const { return document_["seconds"]; }  // that the study has taken so far

  void set_done(std::size_t point, const nlohmann::ordered_json& result);
  void set_failed(std::size_t point, const std::string& why);
  void set_waiting(std::size_t point);
  // Adds members to a point's result.
  void add_to_result(std::size_t point, const nlohmann::ordered_json& members);
  void set(const std::string& key, const nlohmann::ordered_json& value);  // of the study

  const nlohmann::ordered_json& document() const { return document_; }

 private:
  void save() const;

  std::filesystem::path file_;
  nlohmann::ordered_json document_;
};

// What a card says of the study behind it.
struct UnpackedCard {
  std::string study;                        // text of its STUDY.toml
  std::string config;                       // resolved
  std::string text_hash;                    // of the text that it trained on
  std::vector<std::string> overrides = {};  // behind the study's own settings
};
// Errors: ConfigError for a file that is no card.
UnpackedCard unpack_card(const std::filesystem::path& file);

// The text that a configuration trains on: path, bytes and one hash of all files, those of validation sets among them.
nlohmann::ordered_json describe_text(const Settings& settings);

}  // namespace orthant
