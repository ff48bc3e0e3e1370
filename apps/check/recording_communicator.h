// A communicator that writes down which collectives each rank calls on each group, and passes them on.
#pragma once

#include <orthant/group.h>
#include <orthant/ops.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/forwarding_communicator.h"

namespace orthant {

// Shared by the ranks of a world, which are threads.
struct CallRecord {
  std::mutex mutex;
  // By group ("name #number [members]") and world rank: the calls in order, with their sizes where all members' agree.
  std::map<std::string, std::map<int, std::vector<std::string>>> calls;
  std::map<std::string, std::size_t> members;  // of each group that was called
  // By group and world rank: the bytes that each all_to_all, and each send, sent to other members.
  std::map<std::string, std::map<int, std::vector<std::int64_t>>> exchanged;
};

class RecordingCommunicator final : public ForwardingCommunicator {
 public:
  RecordingCommunicator(Communicator& inner, CallRecord& record) : ForwardingCommunicator(inner), record_(record) {}
  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override;

 private:
  CallRecord& record_;
  int splits_ = 0;
};

}  // namespace orthant
