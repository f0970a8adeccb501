// SPDX-License-Identifier: Apache-2.0
// Printing of captured graphs, and the parts of CANN's graph API that are not emulated.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/process.h"

namespace emu {
namespace {

std::string node_name(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kEdgeRecord:
      return "EVENT_RECORD " + std::to_string(node.edge);
    case Node::Kind::kEdgeWait:
      return "EVENT_WAIT " + std::to_string(node.edge);
    case Node::Kind::kTask:
      break;
  }
  return node.task()->name;
}

// Chrome's trace format, as CANN documents: one track a stream. Nothing has run, so that a task's
// time is its position.
void write_json(std::FILE* file, const Graph& graph) {
  std::fprintf(file, "[");
  const char* separator = "\n";
  for (const auto& lane : graph.lanes) {
    for (size_t i = 0; i < lane->nodes.size(); ++i) {
      std::fprintf(file,
                   "%s{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%zu,\"dur\":1,"
                   "\"pid\":\"model_id=%u\","
                   "\"tid\":\"stream%d\",\"args\":{\"task_id\":%zu}}",
                   separator, node_name(*lane->nodes[i]).c_str(), i, graph.id(), lane->stream_id,
                   i);
      separator = ",\n";
    }
  }
  std::fprintf(file, "\n]\n");
}

}  // namespace
}  // namespace emu

EMU_API aclError aclmdlRIGetId(aclmdlRI model, uint32_t* id) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(id);
  auto graph = emu::graphs().find(model);
  if (!graph) return emu::graphs().refuse(__func__, model);
  *id = graph->id();
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRIDebugJsonPrint(aclmdlRI model, const char* path, uint32_t) {
  EMU_ENTER();
  EMU_REQUIRE_NOT_NULL(path);
  aclError error = ACL_SUCCESS;
  auto graph = emu::find_ready_graph(model, __func__, &error);
  if (!graph) return error;
  std::FILE* file = std::fopen(path, "w");
  if (!file) {
    return emu::fail(ACL_ERROR_RT_FILE_OPEN, std::string("aclmdlRIDebugJsonPrint: cannot write '") +
                                                 path + "': " + std::strerror(errno));
  }
  emu::write_json(file, *graph);
  if (std::fclose(file)) {
    return emu::fail(ACL_ERROR_RT_FILE_WRITE,
                     std::string("aclmdlRIDebugJsonPrint: cannot write '") + path +
                         "': " + std::strerror(errno));
  }
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRIDebugPrint(aclmdlRI model) {
  EMU_ENTER();
  aclError error = ACL_SUCCESS;
  auto graph = emu::find_ready_graph(model, __func__, &error);
  if (!graph) return error;
  emu::write_json(stderr, *graph);
  return ACL_SUCCESS;
}

#define EMU_REFUSED(name, ...)                                                               \
  EMU_API aclError name(__VA_ARGS__) {                                                       \
    EMU_ENTER();                                                                             \
    return emu::fail_unsupported(__func__, "conditional nodes and graphs inside of graphs"); \
  }

EMU_REFUSED(aclmdlRICaptureToModelRIBegin, aclrtStream, aclmdlRI, aclmdlRICaptureMode)
EMU_REFUSED(aclmdlRIAddCondTask, aclmdlRICondTaskParams, aclrtStream, uint32_t)
EMU_REFUSED(aclmdlRICondHandleCreate, aclmdlRI, uint32_t, aclmdlRICondHandleFlag,
            aclmdlRICondHandle*)
EMU_REFUSED(aclmdlRICondHandleGetCondPtr, aclmdlRICondHandle, uint64_t**)
