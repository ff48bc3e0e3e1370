#include "apps/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "apps/report/markup.h"
#include "apps/report/style.h"
#include "core/checkpoint/disk.h"

namespace orthant::report {
namespace {

// Rows of a table behind a picture: a longer one has evenly chosen rows, and the CSV file has all.
constexpr std::size_t shown_rows = 40;

// Longer commands stand behind the picture with its numbers.
constexpr std::size_t longest_command = 160;

bool is_number(const std::string& cell) {
  const std::size_t first = !cell.empty() && std::string_view("+-.").find(cell[0]) != std::string_view::npos ? 1 : 0;
  return cell.size() > first && std::isdigit(static_cast<unsigned char>(cell[first])) != 0;
}

std::string head_of(const std::vector<std::string>& cells) {
  std::string row = "<tr>";
  for (const std::string& cell : cells) {
    row += "<th>" + escaped(cell) + "</th>";
  }
  return row + "</tr>\n";
}

// A phone shows the cells of a row one below the other, each with its column's name.
std::string row_of(const std::vector<std::string>& cells, const std::vector<std::string>& head,
                   const char* css_class = nullptr) {
  std::string row = css_class == nullptr ? "<tr>" : fmt::format("<tr class=\"{}\">", css_class);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string name = i < head.size() && !head[i].empty() ? " data-of=\"" + escaped(head[i]) + "\"" : "";
    row += fmt::format("<td{}{}>{}</td>", is_number(cells[i]) ? " class=\"number\"" : "", name, escaped(cells[i]));
  }
  return row + "</tr>\n";
}

std::string table_of(const Grid& grid, const std::string& caption) {
  std::string table = caption.empty() ? "" : "<p class=\"note\">" + escaped(caption) + "</p>\n";
  table += "<div class=\"scroll\" tabindex=\"0\"><table><thead>" + head_of(grid.head) + "</thead><tbody>\n";
  for (const auto& row : grid.rows) {
    table += row_of(row, grid.head);
  }
  return table + "</tbody></table></div>\n";
}

Grid thinned(const Grid& grid) {
  Grid some{grid.head, {}};
  const std::size_t count = std::min(grid.rows.size(), shown_rows);
  for (std::size_t i = 0; i < count; ++i) {
    some.rows.push_back(grid.rows[count < 2 ? 0 : i * (grid.rows.size() - 1) / (count - 1)]);
  }
  return some;
}

std::string folded_in(const std::string& summary, const std::string& inside) {
  return "<details><summary>" + escaped(summary) + "</summary>\n" + inside + "</details>\n";
}

}  // namespace

void Section::end_figures() {
  body_ += in_figures_ ? "</div>\n" : "";
  in_figures_ = false;
}

void Section::html(const std::string& markup) {
  end_figures();
  body_ += markup;
}

void Section::paragraph(const std::string& text, const std::string& css_class) {
  html((css_class.empty() ? "<p>" : "<p class=\"" + css_class + "\">") + escaped(text) + "</p>\n");
}

void Section::heading(const std::string& text) {
  html("<h3>" + escaped(text) + "</h3>\n");
}

void Section::list(const std::vector<std::string>& items, const std::string& css_class) {
  std::string list = css_class.empty() ? "<ul>\n" : "<ul class=\"" + css_class + "\">\n";
  for (const std::string& item : items) {
    list += "<li>" + escaped(item) + "</li>\n";
  }
  html(list + "</ul>\n");
}

void Section::code(const std::string& text) {
  html("<pre tabindex=\"0\"><code>" + escaped(text) + "</code></pre>\n");
}

void Section::table(const Grid& grid, const std::string& caption, bool folded) {
  html(folded ? folded_in(caption, table_of(grid, "")) : table_of(grid, caption));
}

void Section::table_with_commands(const Grid& grid, const std::vector<std::string>& commands,
                                  const std::string& caption) {
  std::string table = "<p class=\"note\">" + escaped(caption) +
                      "</p>\n<div class=\"scroll\" tabindex=\"0\"><table><thead>" + head_of(grid.head) +
                      "</thead><tbody>\n";
  for (std::size_t i = 0; i < grid.rows.size(); ++i) {
    table += row_of(grid.rows[i], grid.head, i < commands.size() ? "above" : nullptr);
    if (i < commands.size()) {
      table += fmt::format("<tr class=\"below\"><td colspan=\"{}\"><code>{}</code></td></tr>\n", grid.head.size(),
                           escaped(commands[i]));
    }
  }
  html(table + "</tbody></table></div>\n");
}

void Section::figure(const Figure& figure) {
  body_ += in_figures_ ? "" : "<div class=\"figures\">\n";
  in_figures_ = true;
  body_ += fmt::format("<figure id=\"{}\">\n<h3>{}</h3>\n{}<figcaption>", figure.id, escaped(figure.title), figure.svg);
  body_ += escaped(figure.caption);
  const bool long_command = figure.command.size() > longest_command;
  if (!figure.command.empty() && !long_command) {
    body_ += "<code class=\"block\">" + escaped(figure.command) + "</code>";
  }
  body_ += "</figcaption>\n";
  const std::string command =
      long_command ? "<pre tabindex=\"0\"><code>" + escaped(figure.command) + "</code></pre>\n" : "";
  if (!figure.data.rows.empty()) {
    const std::size_t rows = figure.data.rows.size();
    const std::string note =
        rows > shown_rows ? fmt::format("{} of {} rows; all are in the CSV file", shown_rows, rows) : "";
    body_ += folded_in(long_command ? "Numbers and commands" : "Numbers",
                       command + "<p>" + download_link(figure.id + ".csv", "text/csv", csv(figure.data), "CSV") +
                           (note.empty() ? "" : " " + escaped(note)) + "</p>\n" + table_of(thinned(figure.data), ""));
  }
  body_ += "</figure>\n";
}

std::string Section::markup() const {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}{}</section>\n", id_, escaped(title_), body_,
                     in_figures_ ? "</div>\n" : "");
}

std::string html(const Page& page) {
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta name=\"color-scheme\" content=\"light "
      "dark\"/>\n<title>{}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n"
      "<header>\n<h1>{}</h1>\n<p>{}</p>\n<nav aria-label=\"Sections\">",
      escaped(page.title), picture_style, page_style, escaped(page.title), escaped(page.subtitle));
  for (const Section& section : page.sections) {
    if (!section.empty()) {
      text += fmt::format("<a href=\"#{}\">{}</a> ", section.id(), escaped(section.title()));
    }
  }
  text += "</nav>\n</header>\n<main>\n";
  for (const Section& section : page.sections) {
    text += section.empty() ? "" : section.markup();
  }
  return text + "</main>\n</body>\n</html>\n";
}

std::string csv(const Grid& grid) {
  std::string text;
  const auto add = [&text](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += (i > 0 ? "," : "") + csv_field(cells[i]);
    }
    text += "\r\n";
  };
  add(grid.head);
  std::for_each(grid.rows.begin(), grid.rows.end(), add);
  return text;
}

std::string download_link(const std::string& name, const std::string& mime, const std::string& text,
                          const std::string& label) {
  return fmt::format("<a download=\"{}\" href=\"data:{};charset=utf-8,{}\">{}</a>", escaped(name), mime,
                     percent_encoded(text), escaped(label));
}

void write_page(const std::filesystem::path& path, const std::string& text) {
  Disk().replace_file(path, text);
}

}  // namespace orthant::report
