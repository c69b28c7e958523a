"""The wires between the hosts of a network: a program that carries frames late, slowly or not at all.

    python wires.py PORTS

Port i leads to the host whose address ends in i + 1. A line of JSON on standard input, [from, to, {...}], sets how the
frames from one port to another pass: see `Way`. Each line is answered once it holds. What a kernel has for this (netem)
is missing in many.
"""

import heapq
import json
import math
import random
import select
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

SOL_PACKET, VNET_HDR, IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
HEADER = 10  # bytes of struct virtio_net_hdr, by which checksums that the sender's card would make stay to be made
ARP = b"\x08\x06"
MOST = 1 << 17  # bytes of a frame
QUEUE_S = 0.4  # a frame that would wait longer for a slow wire is lost, as in a switch


@dataclass
class Way:
    """How frames pass from one port to another. ARP passes at once, so that a fault is silence rather than an error."""

    cut: bool = False
    delay: float = 0.0  # seconds
    loss: float = 0.0  # the share of frames that is lost
    rate: float = math.inf  # bytes a second
    free: float = 0.0  # when the frame before has left

    def arrival(self, now: float, size: int, chance: random.Random) -> float | None:
        """Returns the time at which a frame sent now arrives; None if it is lost."""
        leaves = max(now, self.free) + size / self.rate
        if self.cut or chance.random() < self.loss or leaves - now > QUEUE_S:
            return None
        self.free = leaves
        return leaves + self.delay


def port(number: int) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    opened.setsockopt(SOL_PACKET, VNET_HDR, 1)
    opened.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    opened.bind((f"port{number}", 0))
    opened.setblocking(False)
    return opened


class Wires:
    def __init__(self, ports: int) -> None:
        self.ports = [port(number) for number in range(ports)]
        self.ways = {(i, j): Way() for i in range(ports) for j in range(ports) if i != j}
        self._under_way: list[tuple[float, int, int, bytes]] = []  # arrival, a counter that keeps the order, port
        self._chance, self._sent = random.Random(0), 0

    def take(self, source: int) -> None:
        """Takes the frames that wait at a port."""
        while True:
            try:
                frame = self.ports[source].recv(MOST)
            except BlockingIOError:
                return
            last = frame[HEADER + 5]  # of the receiver's address
            now, resolves = time.monotonic(), frame[HEADER + 12 : HEADER + 14] == ARP
            for target in range(len(self.ports)):
                if target != source and last in (target + 1, 255):
                    way = Way() if resolves else self.ways[source, target]
                    if (at := way.arrival(now, len(frame), self._chance)) is not None:
                        self._sent += 1
                        heapq.heappush(self._under_way, (at, self._sent, target, frame))

    def deliver(self) -> float | None:
        """Delivers the frames that have arrived; returns the seconds until the next."""
        while self._under_way and (wait := self._under_way[0][0] - time.monotonic()) <= 0:
            _, _, target, frame = heapq.heappop(self._under_way)
            with suppress(OSError):  # the receiver has no room, or is gone
                self.ports[target].send(frame)
        return wait if self._under_way else None


def main(ports: int) -> None:
    print("ready", flush=True)
    sys.stdin.readline()  # the ports are there
    wires = Wires(ports)
    print("done", flush=True)
    waiting = select.poll()
    numbers = {opened.fileno(): number for number, opened in enumerate(wires.ports)}
    for descriptor in (*numbers, sys.stdin.fileno()):
        waiting.register(descriptor, select.POLLIN)
    while True:
        wait = wires.deliver()
        for descriptor, _ in waiting.poll(None if wait is None else max(0.0, 1000 * wait)):
            if descriptor in numbers:
                wires.take(numbers[descriptor])
            elif line := sys.stdin.readline():
                source, target, changes = json.loads(line)
                wires.ways[source, target] = Way(**changes)
                print("done", flush=True)
            else:
                return


if __name__ == "__main__":
    main(int(sys.argv[1]))
