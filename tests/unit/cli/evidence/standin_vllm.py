#!/usr/bin/env -S python3 -S -E
# SPDX-License-Identifier: Apache-2.0
"""A program that answers as `vllm serve` and `vllm bench serve` do, in milliseconds.

For tests of the runner only: which processes it starts, in which order, and that it ends them.
STANDIN_JOURNAL: file that gets a line per server start and end. STANDIN_CLIENT_WAIT_S: how long the
client takes. STANDIN_FAIL_ONCE: a path; the first server that does not find it creates it and ends.
STANDIN_TPOT_S: time per output token that the client reports.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def journal(text: str) -> None:
    with Path(os.environ["STANDIN_JOURNAL"]).open("a") as file:
        file.write(text + "\n")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/metrics":
            self.wfile.write(b'vllm:iteration_tokens_total_count{engine="0"} 12.0\nx_bucket{} 1\n')

    def log_message(self, *_: object) -> None:
        pass


def serve() -> None:
    mark = os.environ.get("STANDIN_FAIL_ONCE")
    if mark and not Path(mark).exists():
        Path(mark).touch()
        sys.exit("out of memory")
    server = ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler)

    def stop(*_: object) -> None:
        journal(f"end {os.getpid()}")
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    journal(f"begin {os.getpid()} {os.environ['STANDIN_SIDE']} {sorted(os.sched_getaffinity(0))}")
    print(f"serving {sys.argv[2]} from {Path.home()}", flush=True)
    server.serve_forever()


def bench() -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{option('--port')}/health").close()
    time.sleep(float(os.environ.get("STANDIN_CLIENT_WAIT_S", "0")))
    count, tokens = int(option("--num-prompts")), int(option("--random-output-len"))
    tpot = float(os.environ["STANDIN_TPOT_S"])
    result = {
        "start_times": [100.0 + n for n in range(count)],
        "ttfts": [0.5] * count,
        "itls": [[tpot] * (tokens - 1)] * count,
        "input_lens": [3] * count,
        "output_lens": [tokens] * count,
        "generated_texts": [f"text {n}" for n in range(count)],
        "errors": [""] * count,
    }
    Path(option("--result-dir"), option("--result-filename")).write_text(json.dumps(result))
    print("done")


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else bench()
