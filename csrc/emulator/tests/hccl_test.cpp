// SPDX-License-Identifier: Apache-2.0
// Drives HCCL over the C ABI without torch, for the sanitizers: ranks as threads and as processes,
// collectives, messages and groups, graphs, communicators of every origin, and what goes wrong. One
// mode per process (argv[1]), as in runtime_test.cpp.
#include "hccl/hccl.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"

namespace {

constexpr uint32_t kRanks = 3;
// More than one round and one piece, and no whole number of them.
constexpr size_t kLarge = (size_t{1} << 20) / sizeof(int32_t) * 2 + 77;

#define HCCL_OK(call) OK(static_cast<aclError>(call))
#define HCCL_FAILS(call, code, text) FAILS(static_cast<aclError>(call), code, text)

// A rank: its device, stream and communicator, and int32 buffers on its device.
class Rank {
 public:
  explicit Rank(uint32_t rank) : rank(rank) {
    OK(aclrtSetDevice(static_cast<int32_t>(rank)));
    stream = make_stream();
  }
  ~Rank() {
    for (void* buffer : buffers_) OK(aclrtFree(buffer));
    OK(aclrtDestroyStream(stream));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int32_t* buffer(const std::vector<int32_t>& values) {
    void* address = nullptr;
    OK(aclrtMalloc(&address, values.size() * sizeof(int32_t), ACL_MEM_MALLOC_HUGE_FIRST));
    buffers_.push_back(address);
    write(address, values);
    return static_cast<int32_t*>(address);
  }
  void write(void* address, const std::vector<int32_t>& values) {
    size_t bytes = values.size() * sizeof(int32_t);
    OK(aclrtMemcpy(address, bytes, values.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE));
  }
  std::vector<int32_t> read(const int32_t* address, size_t count) {
    OK(aclrtSynchronizeStream(stream));
    std::vector<int32_t> values(count);
    if (!count) return values;
    size_t bytes = count * sizeof(int32_t);
    OK(aclrtMemcpy(values.data(), bytes, address, bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    return values;
  }

  const uint32_t rank;
  aclrtStream stream = nullptr;
  HcclComm comm = nullptr;

 private:
  std::vector<void*> buffers_;
};

using Body = std::function<void(Rank&)>;

// What rank `rank` puts into a buffer.
std::vector<int32_t> values(uint32_t rank, size_t count) {
  std::vector<int32_t> made(count);
  std::iota(made.begin(), made.end(), static_cast<int32_t>(1000 * rank));
  return made;
}

// Runs `body` on ranks that are threads of this process.
void in_threads(const Body& body, uint32_t ranks = kRanks) {
  HcclRootInfo root;
  HCCL_OK(HcclGetRootInfo(&root));
  std::vector<std::thread> threads;
  for (uint32_t each = 0; each < ranks; ++each) {
    threads.emplace_back([&, each] {
      Rank rank(each);
      HCCL_OK(HcclCommInitRootInfo(ranks, &root, each, &rank.comm));
      body(rank);
      HCCL_OK(HcclCommDestroy(rank.comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs `body` on ranks that are processes, forked before this one has used a device; all end well.
void in_processes(const Body& body, uint32_t ranks = kRanks) {
  std::array<int, 2> pipe_ends;
  CHECK(!pipe(pipe_ends.data()));
  std::vector<pid_t> children;
  for (uint32_t each = 0; each < ranks; ++each) {
    pid_t child = fork();
    if (child == 0) {
      Rank rank(each);
      HcclRootInfo root;
      if (each == 0) {
        HCCL_OK(HcclGetRootInfo(&root));
        for (uint32_t other = 1; other < ranks; ++other) {
          CHECK(write(pipe_ends[1], &root, sizeof root) == sizeof root);
        }
      } else {
        CHECK(read(pipe_ends[0], &root, sizeof root) == sizeof root);
      }
      HCCL_OK(HcclCommInitRootInfo(ranks, &root, each, &rank.comm));
      body(rank);
      HCCL_OK(HcclCommDestroy(rank.comm));
      std::exit(0);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

void collectives_of(Rank& rank, size_t count) {
  const uint32_t n = kRanks;
  auto own = values(rank.rank, count);
  auto sum_at = [&](size_t i) {
    int32_t sum = 0;
    for (uint32_t r = 0; r < n; ++r) sum += static_cast<int32_t>(1000 * r + i);
    return sum;
  };
  int32_t* send = rank.buffer(own);
  int32_t* receive = rank.buffer(std::vector<int32_t>(count * n, -1));

  HCCL_OK(HcclAllReduce(send, receive, count, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, rank.comm,
                        rank.stream));
  auto seen = rank.read(receive, count);
  for (size_t i = 0; i < count; ++i) CHECK(seen[i] == sum_at(i));

  HCCL_OK(HcclAllGather(send, receive, count, HCCL_DATA_TYPE_INT32, rank.comm, rank.stream));
  seen = rank.read(receive, count * n);
  for (size_t i = 0; i < count * n; ++i) {
    CHECK(seen[i] == static_cast<int32_t>(1000 * (i / count) + i % count));
  }

  // In place: what was gathered is scattered again, three times as much as each had.
  HCCL_OK(HcclReduceScatter(receive, receive + rank.rank * count, count, HCCL_DATA_TYPE_INT32,
                            HCCL_REDUCE_SUM, rank.comm, rank.stream));
  seen = rank.read(receive + rank.rank * count, count);
  for (size_t i = 0; i < count; ++i) CHECK(seen[i] == static_cast<int32_t>(n) * own[i]);

  HCCL_OK(HcclReduce(send, receive, count, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_MAX, 1, rank.comm,
                     rank.stream));
  if (rank.rank == 1) CHECK(rank.read(receive, count) == values(n - 1, count));

  HCCL_OK(HcclBroadcast(receive, count, HCCL_DATA_TYPE_INT32, 1, rank.comm, rank.stream));
  CHECK(rank.read(receive, count) == values(n - 1, count));

  HCCL_OK(HcclBarrier(rank.comm, rank.stream));

  // Parts of different sizes, with gaps: rank r has r + 1 elements at 10 * r.
  std::array<uint64_t, kRanks> counts{1, 2, 3};
  std::array<uint64_t, kRanks> offsets{0, 10, 20};
  int32_t* gaps = rank.buffer(std::vector<int32_t>(30, -1));
  HCCL_OK(HcclAllGatherV(send, counts[rank.rank], gaps, counts.data(), offsets.data(),
                         HCCL_DATA_TYPE_INT32, rank.comm, rank.stream));
  seen = rank.read(gaps, 30);
  for (uint32_t r = 0; r < n; ++r) {
    CHECK(seen[10 * r + r] == static_cast<int32_t>(1000 * r + r) && seen[10 * r + r + 1] == -1);
  }
  HCCL_OK(HcclReduceScatterV(gaps, counts.data(), offsets.data(), receive, counts[rank.rank],
                             HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, rank.comm, rank.stream));
  CHECK(rank.read(receive, 1)[0] == static_cast<int32_t>(n * 1000 * rank.rank));

  // matrix[sender][receiver]
  std::array<uint64_t, kRanks * kRanks> matrix{0, 1, 2, 3, 0, 1, 2, 2, 0};
  HCCL_OK(HcclAlltoAllVC(send, matrix.data(), HCCL_DATA_TYPE_INT32, receive, HCCL_DATA_TYPE_INT32,
                         rank.comm, rank.stream));
  seen = rank.read(receive, 5);
  size_t at = 0;
  for (uint32_t sender = 0; sender < n; ++sender) {
    uint64_t before = 0;
    for (uint32_t r = 0; r < rank.rank; ++r) before += matrix[sender * n + r];
    for (uint64_t i = 0; i < matrix[sender * n + rank.rank]; ++i, ++at) {
      CHECK(seen[at] == static_cast<int32_t>(1000 * sender + before + i));
    }
  }
}

void collectives(Rank& rank) {
  collectives_of(rank, 5);
  collectives_of(rank, kLarge);
}

// Everybody sends to everybody in one group; then around in a ring, each on its own.
void messages(Rank& rank) {
  const uint32_t n = kRanks;
  for (size_t count : {size_t{0}, size_t{4}, kLarge}) {
    int32_t* send = rank.buffer(values(rank.rank, count + 1));
    std::vector<int32_t*> receive;
    HCCL_OK(HcclGroupStart());
    for (uint32_t other = 0; other < n; ++other) {
      receive.push_back(rank.buffer(std::vector<int32_t>(count + 1, -1)));
      HCCL_OK(HcclSend(send, count, HCCL_DATA_TYPE_INT32, other, rank.comm, rank.stream));
      HCCL_OK(HcclRecv(receive.back(), count, HCCL_DATA_TYPE_INT32, other, rank.comm, rank.stream));
    }
    HCCL_OK(HcclGroupEnd());
    for (uint32_t other = 0; other < n; ++other) {
      CHECK(rank.read(receive[other], count) == values(other, count));
    }
    const uint32_t after = (rank.rank + 1) % n;
    const uint32_t before = (rank.rank + n - 1) % n;
    // On two streams of a rank, whichever comes first.
    aclrtStream side = make_stream();
    HCCL_OK(HcclSend(send, count, HCCL_DATA_TYPE_INT32, after, rank.comm, side));
    HCCL_OK(HcclRecv(receive[0], count, HCCL_DATA_TYPE_INT32, before, rank.comm, rank.stream));
    CHECK(rank.read(receive[0], count) == values(before, count));
    OK(aclrtSynchronizeStream(side));
    OK(aclrtDestroyStream(side));
  }
}

void graphs(Rank& rank) {
  int32_t* buffer = rank.buffer({1});
  OK(aclmdlRICaptureBegin(rank.stream, ACL_MODEL_RI_CAPTURE_MODE_RELAXED));
  HCCL_OK(HcclAllReduce(buffer, buffer, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, rank.comm,
                        rank.stream));
  HCCL_OK(HcclBroadcast(buffer, 1, HCCL_DATA_TYPE_INT32, 0, rank.comm, rank.stream));
  aclmdlRI graph = nullptr;
  OK(aclmdlRICaptureEnd(rank.stream, &graph));
  CHECK(rank.read(buffer, 1)[0] == 1);  // nothing has run
  int32_t expected = 1;
  for (int replay = 0; replay < 5; ++replay) {
    OK(aclmdlRIExecuteAsync(graph, rank.stream));
    expected *= kRanks;
    if (replay % 2) CHECK(rank.read(buffer, 1)[0] == expected);
  }
  CHECK(rank.read(buffer, 1)[0] == expected);
  OK(aclmdlRIDestroy(graph));
}

// Communicators made from others, and of two at a time on two streams.
void subcommunicators(Rank& rank) {
  std::array<uint32_t, 2> members{2, 0};
  HcclComm sub = nullptr;
  HcclCommConfig config;
  HcclCommConfigInit(&config);
  std::strncpy(config.hcclCommName, "outer", COMM_NAME_MAX_LENGTH - 1);
  if (rank.rank == 1) {
    HCCL_OK(HcclCreateSubCommConfig(&rank.comm, 2, nullptr, 0xFFFFFFFF, 0, &config, &sub));
    CHECK(!sub);
    HCCL_FAILS(HcclCreateSubCommConfig(&rank.comm, 2, members.data(), 7, 0, &config, &sub),
               HCCL_E_PARA, "is not number 0 of the ranks 2,0");
  } else {
    uint32_t here = rank.rank == 2 ? 0 : 1;
    HCCL_OK(HcclCreateSubCommConfig(&rank.comm, 2, members.data(), 7, here, &config, &sub));
    uint32_t size = 0;
    uint32_t id = 0;
    char name[COMM_NAME_MAX_LENGTH];
    HCCL_OK(HcclGetRankSize(sub, &size));
    HCCL_OK(HcclGetRankId(sub, &id));
    HCCL_OK(HcclGetCommName(sub, name));
    CHECK(size == 2 && id == here && name == std::string("outer"));
  }
  int32_t* first = rank.buffer({static_cast<int32_t>(rank.rank) + 1});
  int32_t* second = rank.buffer({10 * static_cast<int32_t>(rank.rank)});
  aclrtStream side = make_stream();
  if (sub) {
    HCCL_OK(HcclAllReduce(second, second, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, sub, side));
  }
  HCCL_OK(HcclAllReduce(first, first, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, rank.comm,
                        rank.stream));
  CHECK(rank.read(first, 1)[0] == 6);
  OK(aclrtSynchronizeStream(side));
  if (sub) {
    CHECK(rank.read(second, 1)[0] == 20);
    HCCL_OK(HcclCommDestroy(sub));
  }
  OK(aclrtDestroyStream(side));
}

void everything(Rank& rank) {
  collectives(rank);
  messages(rank);
  graphs(rank);
  subcommunicators(rank);
}

// One process, one call, no threads but the streams'.
void init_all() {
  std::array<int32_t, 2> devices{1, 0};
  std::array<HcclComm, 2> comms;
  HCCL_OK(HcclCommInitAll(2, devices.data(), comms.data()));
  std::array<void*, 2> buffers;
  std::array<aclrtStream, 2> streams;
  for (size_t r = 0; r < 2; ++r) {
    OK(aclrtSetDevice(devices[r]));
    streams[r] = make_stream();
    OK(aclrtMalloc(&buffers[r], 64, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtMemset(buffers[r], 64, static_cast<int32_t>(r + 1), 64));
    HCCL_OK(HcclAllReduce(buffers[r], buffers[r], 64, HCCL_DATA_TYPE_INT8, HCCL_REDUCE_SUM,
                          comms[r], streams[r]));
  }
  HCCL_FAILS(HcclBarrier(comms[0], streams[1]), HCCL_E_PARA, "the communicator is of device 1");
  for (size_t r = 0; r < 2; ++r) {
    OK(aclrtSetDevice(devices[r]));
    OK(aclrtSynchronizeStream(streams[r]));
    std::array<int8_t, 64> seen;
    OK(aclrtMemcpy(seen.data(), 64, buffers[r], 64, ACL_MEMCPY_DEVICE_TO_HOST));
    for (int8_t value : seen) CHECK(value == 3);
    OK(aclrtFree(buffers[r]));
    OK(aclrtDestroyStream(streams[r]));
    HCCL_OK(HcclCommDestroy(comms[r]));
  }
  std::array<int32_t, 2> twice{0, 0};
  HCCL_FAILS(HcclCommInitAll(2, twice.data(), comms.data()), HCCL_E_PARA, "two ranks use device 0");
  HCCL_FAILS(HcclCommDestroy(comms[0]), HCCL_E_PARA, "was destroyed");
}

void rank_table() {
  std::string path = "/tmp/emulated_rank_table_" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << R"({"version": "1.0", "server_count": "1", "server_list": [{"server_id":
    "127.0.0.1", "device": [{"device_id": "0", "device_ip": "10.0.0.1", "rank_id": "0"},
    {"device_id": "1", "device_ip": "10.0.0.2", "rank_id": "1"}]}], "status": "completed"})";
  std::vector<std::thread> threads;
  for (uint32_t each = 0; each < 2; ++each) {
    threads.emplace_back([&, each] {
      Rank rank(each);
      HCCL_OK(HcclCommInitClusterInfo(path.c_str(), each, &rank.comm));
      HCCL_OK(HcclBarrier(rank.comm, rank.stream));
      OK(aclrtSynchronizeStream(rank.stream));
      HCCL_OK(HcclCommDestroy(rank.comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
  HcclComm comm = nullptr;
  OK(aclrtSetDevice(0));
  HCCL_FAILS(HcclCommInitClusterInfo(path.c_str(), 2, &comm), HCCL_E_PARA, "has no rank 2");
  HCCL_FAILS(HcclCommInitClusterInfo("/nowhere", 0, &comm), HCCL_E_OPEN_FILE_FAILURE, "/nowhere");
  unlink(path.c_str());
}

// With HCCL_EXEC_TIMEOUT=1 and HCCL_CONNECT_TIMEOUT=1.
void failures() {
  HcclRootInfo root;
  HcclComm comm = nullptr;
  OK(aclrtSetDevice(0));
  HCCL_OK(HcclGetRootInfo(&root));
  HCCL_FAILS(HcclCommInitRootInfo(3, &root, 1, &comm), HCCL_E_TIMEOUT, "have not come: 0, 2");
  HCCL_FAILS(HcclCommInitRootInfo(3, &root, 3, &comm), HCCL_E_PARA, "rank 3 of 3");

  // A rank that never comes; what it does afterwards fails at once.
  std::atomic<bool> is_over{false};
  in_threads(
      [&](Rank& rank) {
        if (rank.rank == 0) {
          HCCL_OK(HcclBarrier(rank.comm, rank.stream));
          FAILS(aclrtSynchronizeStream(rank.stream), ACL_ERROR_RT_FFTS_PLUS_TIMEOUT,
                "EI0002: HcclBarrier, collective 1, rank 0 of 2");
          HcclResult result = HCCL_SUCCESS;
          HCCL_OK(HcclGetCommAsyncError(rank.comm, &result));
          CHECK(result == HCCL_E_TIMEOUT);
          is_over = true;
        } else {
          while (!is_over) sleep_ms(10);
          HCCL_OK(HcclBarrier(rank.comm, rank.stream));
          FAILS(aclrtSynchronizeStream(rank.stream), ACL_ERROR_RT_FFTS_PLUS_TIMEOUT,
                "rank 0 has failed: EI0002");
        }
        OK(aclrtResetDevice(static_cast<int32_t>(rank.rank)));
      },
      2);

  // One that leaves.
  in_threads(
      [&](Rank& rank) {
        if (rank.rank == 1) return;
        HCCL_OK(HcclBarrier(rank.comm, rank.stream));
        FAILS(aclrtSynchronizeStream(rank.stream), ACL_ERROR_RT_FFTS_PLUS_TIMEOUT,
              "rank 1 has left the communicator");
        OK(aclrtResetDevice(0));
      },
      2);

  // Ranks that ask for different things.
  in_threads(
      [&](Rank& rank) {
        int32_t* buffer = rank.buffer({1, 2, 3, 4});
        HCCL_OK(HcclAllReduce(buffer, buffer, 3 + rank.rank, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM,
                              rank.comm, rank.stream));
        FAILS(aclrtSynchronizeStream(rank.stream), ACL_ERROR_RT_FFTS_PLUS_EXCEPTION,
              "EI0005: HcclAllReduce of int32");
        OK(aclrtResetDevice(static_cast<int32_t>(rank.rank)));
      },
      2);
}

// A rank that is killed in the middle of a collective of many rounds, and one before it.
void killed() {
  for (bool in_the_middle : {true, false}) {
    std::array<int, 2> pipe_ends;
    CHECK(!pipe(pipe_ends.data()));
    std::array<pid_t, 2> children;
    for (uint32_t each = 0; each < 2; ++each) {
      children[each] = fork();
      if (children[each]) continue;
      Rank rank(each);
      HcclRootInfo root;
      if (each == 0) {
        HCCL_OK(HcclGetRootInfo(&root));
        CHECK(write(pipe_ends[1], &root, sizeof root) == sizeof root);
      } else {
        CHECK(read(pipe_ends[0], &root, sizeof root) == sizeof root);
      }
      HCCL_OK(HcclCommInitRootInfo(2, &root, each, &rank.comm));
      if (each == 1 && !in_the_middle) std::raise(SIGKILL);
      // Rounds enough to be killed among them.
      constexpr size_t kCount = size_t{64} << 20;
      void* buffer = nullptr;
      OK(aclrtMalloc(&buffer, kCount, ACL_MEM_MALLOC_HUGE_FIRST));
      // Once the device has seen that the other is gone, it takes no more.
      HcclResult submitted = HCCL_SUCCESS;
      for (int i = 0; i < 100 && submitted == HCCL_SUCCESS; ++i) {
        submitted = HcclAllReduce(buffer, buffer, kCount, HCCL_DATA_TYPE_INT8, HCCL_REDUCE_SUM,
                                  rank.comm, rank.stream);
      }
      CHECK(submitted == HCCL_SUCCESS || each == 0);
      if (each == 1) {
        sleep_ms(100);
        std::raise(SIGKILL);
      }
      FAILS(aclrtSynchronizeStream(rank.stream), ACL_ERROR_RT_FFTS_PLUS_TIMEOUT,
            "of rank 1 has ended");
      std::_Exit(0);
    }
    int status = 0;
    CHECK(waitpid(children[1], &status, 0) == children[1] && WIFSIGNALED(status));
    CHECK(waitpid(children[0], &status, 0) == children[0]);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::string mode = count > 1 ? arguments[1] : "";
  if (mode == "threads") {
    in_threads(everything);
    init_all();
    rank_table();
  } else if (mode == "processes") {
    in_processes(everything);
  } else if (mode == "failures") {
    failures();
  } else if (mode == "killed") {
    killed();
  } else {
    std::fprintf(stderr, "usage: hccl_test threads|processes|failures|killed\n");
    return 2;
  }
  std::printf("%s: passed\n", mode.c_str());
  return 0;
}
