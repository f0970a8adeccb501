// SPDX-License-Identifier: Apache-2.0
// Communicators by rank table: a JSON file that names all ranks and their devices, instead of a
// root info that one rank hands to the others. Tables of one machine only.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "hccl/create.h"
#include "hccl/result.h"

namespace emu::hccl {
namespace {

// The values of all entries "key": "value" or "key": value, wherever they are.
std::multiset<std::string> values_of(const std::string& json, const std::string& key) {
  const std::string name = '"' + key + '"';
  std::multiset<std::string> values;
  for (size_t at = json.find(name); at != std::string::npos; at = json.find(name, at)) {
    at += name.size();
    size_t begin = json.find_first_not_of(": \t\r\n\"", at);
    if (begin == std::string::npos) break;
    at = std::min(json.find_first_of("\",}] \t\r\n", begin), json.size());
    values.insert(json.substr(begin, at - begin));
  }
  return values;
}

HcclResult create_by_table(const char* api, const char* path, uint32_t rank,
                           const HcclCommConfig* config, HcclComm* communicator) {
  if (!path) return refuse(HCCL_E_PTR, std::string(api) + ": clusterInfo is null");
  std::ifstream file(path);
  if (!file) {
    return refuse(HCCL_E_OPEN_FILE_FAILURE,
                  std::string(api) + ": " + path + ": " + std::strerror(errno));
  }
  std::stringstream text;
  text << file.rdbuf();
  const std::multiset<std::string> ranks = values_of(text.str(), "rank_id");
  const std::multiset<std::string> servers = values_of(text.str(), "server_id");
  if (!ranks.count(std::to_string(rank))) {
    return refuse(HCCL_E_PARA, std::string(api) + ": the rank table " + path + " has no rank " +
                                   std::to_string(rank));
  }
  if (std::set<std::string>(servers.begin(), servers.end()).size() > 1) {
    return refuse(HCCL_E_NOT_SUPPORT, std::string(api) + ": the rank table " + path +
                                          " has several servers, and emulated devices reach no "
                                          "other machine");
  }
  const std::string address = well_known_address(text.str());
  serve_if_nobody_does(address);
  return create(api, {address, "table", static_cast<uint32_t>(ranks.size()), rank, 0}, config,
                communicator);
}

}  // namespace
}  // namespace emu::hccl

EMU_API HcclResult HcclCommInitClusterInfo(const char* path, uint32_t rank,
                                           HcclComm* communicator) {
  return emu::hccl::create_by_table(__func__, path, rank, nullptr, communicator);
}

EMU_API HcclResult HcclCommInitClusterInfoConfig(const char* path, uint32_t rank,
                                                 HcclCommConfig* config, HcclComm* communicator) {
  return emu::hccl::create_by_table(__func__, path, rank, config, communicator);
}
