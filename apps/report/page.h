// A page: sections with text, tables and figures, in one file of HTML that is well-formed XML.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace orthant::report {

// Cells are plain text. One that begins with a digit, a sign or a point is set as a number.
struct Grid {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

// With the same numbers in a table behind the picture and in a CSV file beside it.
struct Figure {
  std::string id;  // a name for links and files: letters, digits, '-'
  std::string title;
  std::string svg;      // of plot.h
  std::string caption;  // what it shows, and how its numbers were made
  std::string command;  // what makes these numbers; empty: none
  Grid data;            // every number that is drawn
};

// Builds the inside of a section. Text is escaped here; `html` is not.
class Section {
 public:
  Section(std::string id, std::string title) : id_(std::move(id)), title_(std::move(title)) {}

  void paragraph(const std::string& text, const std::string& css_class = "");
  void heading(const std::string& text);
  void list(const std::vector<std::string>& items, const std::string& css_class = "");
  void code(const std::string& text);
  // Long tables stand behind a line that opens them. `caption` is plain text.
  void table(const Grid& grid, const std::string& caption, bool folded = false);
  // Tables whose rows have a command each, which is shown below the row.
  void table_with_commands(const Grid& grid, const std::vector<std::string>& commands, const std::string& caption);
  // Figures that follow each other stand side by side where there is room.
  void figure(const Figure& figure);
  void html(const std::string& markup);

  bool empty() const { return body_.empty(); }
  const std::string& id() const { return id_; }
  const std::string& title() const { return title_; }
  std::string markup() const;

 private:
  void end_figures();

  std::string id_, title_, body_;
  bool in_figures_ = false;
};

struct Page {
  std::string title;
  std::string subtitle;
  std::vector<Section> sections;  // empty ones are left out
};

std::string html(const Page& page);

// "id,x,y" lines, RFC 4180.
std::string csv(const Grid& grid);

// A data: link that saves `text` as a file `name`.
std::string download_link(const std::string& name, const std::string& mime, const std::string& text,
                          const std::string& label);

// Replaces the file as a whole. Errors: Error naming it.
void write_page(const std::filesystem::path& path, const std::string& text);

}  // namespace orthant::report
