#include "plugins/tokenizer/added_tokens.h"

#include "core/base/utf8.h"

namespace orthant {

AddedTokens::AddedTokens(std::vector<std::pair<std::string, AddedToken>> tokens) : nodes_(1) {
  for (auto& [text, token] : tokens) {
    if (text.empty()) {
      continue;
    }
    begins_[static_cast<unsigned char>(text[0])] = true;
    std::size_t at = 0;
    for (const char byte : text) {
      const Node* known = child(nodes_[at], byte);
      if (known != nullptr) {
        at = static_cast<std::size_t>(known - nodes_.data());
      } else {
        nodes_[at].next.emplace_back(static_cast<unsigned char>(byte), static_cast<std::uint32_t>(nodes_.size()));
        at = nodes_.size();
        nodes_.emplace_back();
      }
    }
    if (nodes_[at].token < 0) {  // of two with one text the first is found
      nodes_[at].token = static_cast<std::int32_t>(tokens_.size());
      tokens_.push_back(std::move(token));
    }
  }
}

const AddedTokens::Node* AddedTokens::child(const Node& node, char byte) const {
  for (const auto& [edge, next] : node.next) {
    if (edge == static_cast<unsigned char>(byte)) {
      return &nodes_[next];
    }
  }
  return nullptr;
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) {
      continue;
    }
    std::optional<Found> longest;
    const Node* node = nodes_.data();
    for (std::size_t end = begin; end < text.size();) {
      node = child(*node, text[end++]);
      if (node == nullptr) {
        break;
      }
      if (node->token >= 0) {
        longest = Found{{begin, end}, &tokens_[static_cast<std::size_t>(node->token)]};
      }
    }
    if (longest) {
      return longest;
    }
  }
  return std::nullopt;
}

bool AddedTokens::stands_alone(std::string_view text, TextSpan span) const {
  RegexWork work;
  TextSpan match;
  const auto is_word = [&](std::size_t begin) {
    return word_.find(text.substr(begin, utf8_length(text.substr(begin))), 0, match, work);
  };
  const bool open = span.begin == 0 || !is_word(last_character(text.substr(0, span.begin)));
  return open && (span.end == text.size() || !is_word(span.end));
}

std::size_t AddedTokens::left_of_space(std::string_view text, std::size_t end) {
  while (end > 0) {
    const std::size_t last = last_character(text.substr(0, end));
    if (!is_white_space(utf8_code(text.substr(last)))) {
      break;
    }
    end = last;
  }
  return end;
}

std::size_t AddedTokens::right_of_space(std::string_view text, std::size_t begin) {
  while (begin < text.size() && is_white_space(utf8_code(text.substr(begin)))) {
    begin += utf8_length(text.substr(begin));
  }
  return begin;
}

}  // namespace orthant
