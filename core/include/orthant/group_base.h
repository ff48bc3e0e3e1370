// GroupBase: what Groups of every transport share: name, members, and the checks of arguments before anything moves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <orthant/group.h>
#include <orthant/tensor.h>

namespace orthant {

// Errors: the checks throw Error naming the call, the group and both shapes.
class GroupBase : public Group {
 public:
  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

 protected:
  GroupBase(std::string name, int rank, std::vector<int> members)
      : name_(std::move(name)), rank_(rank), members_(std::move(members)) {}

  void check(const Tensor& t, const char* call) const;
  void check_reducible(const Tensor& t, const char* call) const;
  void check_member(int rank, const char* call, const char* role) const;
  void check_peer(int peer, const char* call) const;
  // `whole` has size() times the elements of `block`.
  void check_blocks(const Tensor& whole, const Tensor& block, const char* call, const char* whole_name,
                    const char* block_name) const;

  // The counts of an all_to_all, in elements.
  struct Exchange {
    std::vector<std::int64_t> recv, send;
  };
  Exchange check_exchange(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                          std::span<const std::int64_t> send_rows) const;

  // What moving calls do in a group of one.
  void copy_unless_same(const Tensor& out, const Tensor& in, Stream& s) const;

 private:
  std::string name_;
  int rank_;
  std::vector<int> members_;
};

}  // namespace orthant
