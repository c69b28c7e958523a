"""Your own loop on two machines: rows that a node's processes write arrive in the replay beside your learner.

Run `ray start --head` on the learner's machine and `ray start --address ...` on the others, then this program on the
learner's.
"""

import sys

import numpy as np
import ray

import marlcore as mc
import marlcore.cluster

SPEC = mc.TransitionSpec(obs=mc.Field((4,)), action=mc.Field((), "int64"))
ROWS = 1000


def make_ingest(replay, bookings):
    replay, bookings = mc.ReplayBuffer.attach(replay), mc.cluster.Bookings.attach(bookings)
    return {"rows": mc.cluster.Ingest(replay, bookings, seats=[range(replay.lanes)])}


@ray.remote
def collect(ingest, rows):
    node = mc.ReplayBuffer.create(SPEC, capacity=10_000)  # on this node; any process of it may write to its lanes
    with mc.cluster.Relay(node, mc.cluster.RayLink(ingest, "rows")).start() as relay, node.writer() as writer:
        for step in range(rows):
            writer.add(np.full(4, step, np.float32), step, 1.0)
        relay.drain(timeout=60.0)


def main(address="auto"):
    ray.init(address=address, log_to_driver=False)
    with mc.ReplayBuffer.create(SPEC, capacity=100_000) as replay, mc.cluster.Bookings.create(1) as bookings:
        ingest = mc.cluster.start_ingest(lambda: make_ingest(replay.handle, bookings.handle))
        ray.get(collect.options(scheduling_strategy="SPREAD").remote(ingest, ROWS))
        batch = replay.sampler(batch_size=32, seed=0).sample()
        print(f"{len(replay)} rows arrived; a batch of them has {len(batch)}")
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
