// SPDX-License-Identifier: Apache-2.0
// What Python sees: torch.classes.ascend_mrv2.{ExternalEvent,TaskProgram,Updater}.
// Methods run without the GIL. The runtime's handles come as the integers that torch_npu shows.
#include <torch/custom_class.h>

#include "hotpath/updater.h"

namespace hotpath {
namespace {

template <typename Handle>
Handle as_handle(int64_t value) {
  return reinterpret_cast<Handle>(value);  // NOLINT(performance-no-int-to-ptr)
}

struct EventHolder : torch::CustomClassHolder {
  EventHolder() : event(std::make_shared<ExternalEvent>()) {}
  void wait(int64_t stream) { event->wait(as_handle<aclrtStream>(stream)); }
  void reset(int64_t stream) { event->reset(as_handle<aclrtStream>(stream)); }
  void record(int64_t stream) { event->record(as_handle<aclrtStream>(stream)); }

  std::shared_ptr<const ExternalEvent> event;
};

struct ProgramHolder : torch::CustomClassHolder {
  ProgramHolder(const std::string& op, const std::string& overload,
                const std::string& query_lengths, const std::string& kv_lengths)
      : program(std::make_shared<TaskProgram>(op, overload, query_lengths, kv_lengths)) {}
  void add(const c10::Dict<std::string, c10::IValue>& arguments, int64_t group,
           const c10::intrusive_ptr<EventHolder>& event) {
    program->add(arguments, as_handle<aclrtTaskGrp>(group), event->event);
  }
  int64_t size() const { return static_cast<int64_t>(program->size()); }

  std::shared_ptr<TaskProgram> program;
};

struct UpdaterHolder : torch::CustomClassHolder {
  // stream_id, device_index, device_type: torch's names for the stream; handle: the runtime's.
  UpdaterHolder(int64_t stream_id, int64_t device_index, int64_t device_type, int64_t handle)
      : updater({c10::Stream::unpack3(stream_id, static_cast<c10::DeviceIndex>(device_index),
                                      static_cast<c10::DeviceType>(device_type)),
                 as_handle<aclrtStream>(handle)}) {}
  void submit(const c10::intrusive_ptr<ProgramHolder>& program, std::vector<int64_t> query_ends,
              std::vector<int64_t> kv_lens, int64_t captured) {
    updater.submit(program->program, std::move(query_ends), std::move(kv_lens),
                   static_cast<size_t>(captured));
  }
  bool settle(int64_t timeout_ms) { return updater.settle(timeout_ms); }
  void check() { updater.check(); }
  int64_t outstanding() const { return updater.outstanding(); }
  int64_t issued() const { return updater.issued(); }
  void hold(bool held) { updater.hold(held); }
  void close() { updater.close(); }

  Updater updater;
};

TORCH_LIBRARY(ascend_mrv2, library) {
  library.class_<EventHolder>("ExternalEvent")
      .def(torch::init<>())
      .def("wait", &EventHolder::wait)
      .def("reset", &EventHolder::reset)
      .def("record", &EventHolder::record);
  library.class_<ProgramHolder>("TaskProgram")
      .def(torch::init<const std::string&, const std::string&, const std::string&,
                       const std::string&>())
      .def("add", &ProgramHolder::add)
      .def("size", &ProgramHolder::size);
  library.class_<UpdaterHolder>("Updater")
      .def(torch::init<int64_t, int64_t, int64_t, int64_t>())
      .def("submit", &UpdaterHolder::submit)
      .def("settle", &UpdaterHolder::settle)
      .def("check", &UpdaterHolder::check)
      .def("outstanding", &UpdaterHolder::outstanding)
      .def("issued", &UpdaterHolder::issued)
      .def("hold", &UpdaterHolder::hold)
      .def("close", &UpdaterHolder::close);
}

}  // namespace
}  // namespace hotpath
