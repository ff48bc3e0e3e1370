#!/usr/bin/env python3
"""Minutes of load on `orthant serve`, malformed requests and clients that go away mixed in.

soak.py PROGRAM MODEL [--minutes M] [--clients N]: starts the server, and says what it was asked, what came back and how
its memory went. Exit 1 where an answer was wrong, the server ended, or it grew by more than --growth MiB in the second
half.
"""
import argparse
import collections
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

MALFORMED = [b"", b"{", b"[]", b'{"prompt": 7}', b'{"prompt": "a", "n": 0}', b'{"prompt": "a", "nonsense": 1}',
             b'{"prompt": "\xff"}', b"[" * 5000, b'{"prompt": "a", "max_tokens": 99999999}', b'{"prompt": [999999]}',
             b'{"prompt": "a", "logit_bias": {"1": 2}}', b'{"prompt": "a", "stop": [""]}']
CHECKED = {"prompt": "The lazy", "max_tokens": 24, "temperature": 0.7, "seed": 9, "logprobs": 1}


def post(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, text


class Load:
    def __init__(self, port, minutes, clients):
        self.port, self.until = port, time.monotonic() + 60 * minutes
        self.counts, self.wrong, self.lock = collections.Counter(), [], threading.Lock()
        status, text = post(port, json.dumps(CHECKED))
        assert status == 200, text
        self.expected = json.loads(text)["choices"]
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]

    def count(self, kind, right, what):
        with self.lock:
            self.counts[kind] += 1
            if not right:
                self.wrong.append((kind, what))

    def client(self, number):
        draw = random.Random(number)
        acts = [self.checked, self.checked, self.streamed, self.malformed, self.vanishing, self.garbage, self.half, self.many]
        while time.monotonic() < self.until:
            act = draw.choice(acts)
            try:
                act(draw)
            except OSError as error:
                self.count(act.__name__, False, repr(error))

    def checked(self, draw):
        """The same bits, whatever else the server does."""
        status, text = post(self.port, json.dumps(CHECKED))
        full = status == 503
        self.count("full" if full else "checked", full or json.loads(text).get("choices") == self.expected, text[:300])

    def many(self, draw):
        asked = {"prompt": ["a" * draw.randint(1, 300) for _ in range(draw.randint(1, 8))], "n": draw.randint(1, 4),
                 "max_tokens": draw.randint(0, 40), "echo": draw.random() < 0.5, "logprobs": draw.randint(0, 5)}
        status, text = post(self.port, json.dumps(asked))
        self.count("many", status in (200, 503), text[:300])

    def streamed(self, draw):
        status, text = post(self.port, json.dumps({**CHECKED, "stream": True}))
        parts = [json.loads(line[6:]) for line in text.decode().split("\n\n") if line.startswith("data: {")]
        said = "".join(part["choices"][0]["text"] for part in parts if part.get("choices"))
        full = status == 503
        self.count("full" if full else "streamed", full or said == self.expected[0]["text"], text[:300])

    def malformed(self, draw):
        status, text = post(self.port, draw.choice(MALFORMED))
        self.count("malformed", 400 <= status < 500 and b'"message"' in text, (status, text[:300]))

    def raw(self, data, read):
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as to:
            to.sendall(data)
            return to.recv(read) if read else b""

    def vanishing(self, draw):
        body = json.dumps({"prompt": "The", "max_tokens": 2000, "stream": draw.random() < 0.5, "n": draw.randint(1, 3)})
        head = f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as to:
            to.sendall((head + body).encode())
            time.sleep(draw.random() * 0.3)
        self.count("vanishing", True, "")

    def garbage(self, draw):
        try:
            self.raw(draw.randbytes(draw.randint(1, 3000)) + b"\r\n\r\n", 100)
        except ConnectionResetError:
            pass  # it need not read all of it
        self.count("garbage", True, "")

    def half(self, draw):
        self.raw(b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{", 0)
        self.count("half", True, "")


def memory(process):
    """Resident MiB."""
    for line in open(f"/proc/{process.pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--growth", type=float, default=16)
    o = parser.parse_args()
    server = subprocess.Popen([o.program, "serve", o.model, "--port", "0"], stdout=subprocess.PIPE, text=True)
    ready = server.stdout.readline()
    load = Load(int(re.search(r":(\d+)/v1", ready)[1]), o.minutes, o.clients)
    start = memory(server)
    for thread in load.threads:
        thread.start()
    halves = []
    for _ in range(2):
        time.sleep(30 * o.minutes)
        halves.append(memory(server))
        print(f"{dict(load.counts)}  {halves[-1]:.1f} MiB", flush=True)
    for thread in load.threads:
        thread.join()
    time.sleep(12)  # half-sent requests are given up
    status, text = post(load.port, json.dumps(CHECKED))
    load.count("last", status == 200 and json.loads(text)["choices"] == load.expected, text[:300])
    files = len(os.listdir(f"/proc/{server.pid}/fd"))
    server.send_signal(signal.SIGTERM)
    code = server.wait(60)
    print(f"{sum(load.counts.values())} requests, {len(load.wrong)} wrong; {start:.1f} MiB at the start, {halves[0]:.1f} halfway, "
          f"{halves[1]:.1f} at the end; {files} open files; exit {code}")
    for kind, what in load.wrong[:10]:
        print("wrong:", kind, what)
    sys.exit(1 if load.wrong or code != 0 or halves[1] - halves[0] > o.growth else 0)


if __name__ == "__main__":
    main()
