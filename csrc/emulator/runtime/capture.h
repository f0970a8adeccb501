// SPDX-License-Identifier: Apache-2.0
// Capture: turns what streams are asked to do into the nodes of a graph, and refuses what cannot be
// captured. One lock guards all of it; streams that have nothing to do with a graph never take it.
// Replaying is not here.
//
// Sources of the rules: CANN 8.5 / 9.x documentation of aclmdlRICapture*, and the error codes and
// their texts in rt_error_codes.h.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "runtime/api.h"
#include "runtime/graph.h"

namespace emu {

// Guards GraphUse of all streams, CaptureMark of all events, and graphs that are being captured.
std::mutex& capture_lock();

// The task goes to the graph that is captured on the stream, or into the update that is open there.
// Nothing if the stream has neither.
std::optional<aclError> take_for_graph(Stream& stream, Task& task);

// An event's latest record in a capture.
struct CaptureMark {
  std::weak_ptr<Graph> graph;
  size_t edge = 0;
};

// For ordinary events, whose records and waits become edges. Nothing if neither the stream nor the
// event is being captured.
std::optional<aclError> capture_record(Stream& stream, CaptureMark& mark);
// `recorded`: the event has a record that was not captured.
std::optional<aclError> capture_wait(const std::shared_ptr<Stream>& stream, const CaptureMark& mark,
                                     bool recorded);
// 107028 if the event's latest record is in a capture that has not ended.
aclError refuse_if_captured(const CaptureMark& mark, const char* api);

// 107027 if the stream is being captured.
aclError refuse_if_capturing(Stream& stream, const char* api);
// 107027 if any stream of the device is being captured.
aclError refuse_if_any_capturing(const Device& device, const char* api);
// `code` where the mode of a capture on the device forbids the calling thread an unsafe call.
// 107030 is for synchronous calls, 107041 for asynchronous ones that would wait.
aclError refuse_if_unsafe(const Device& device, const char* api, aclError code);

}  // namespace emu
