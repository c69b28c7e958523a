"""An actor-learner in JAX on marlcore's core: Q-learning in a corridor, with two actors in processes of their own.

    pip install marlcore jax && python jax_actor_learner.py

Actors append transitions to the replay and pull the newest weights into NumPy arrays, in place. The learner samples,
takes a gradient step, and publishes JAX's new arrays. No actor waits for the learner, and the learner for no actor.
"""

import jax
import jax.numpy as jnp
import numpy as np

import marlcore as mc

CELLS, HIDDEN, DISCOUNT, LEARNING_RATE, UPDATES = 8, 32, 0.9, 0.3, 3_000
SPEC = mc.TransitionSpec(obs=mc.Field((CELLS,)), action=mc.Field((), "int64"))


def new_weights(seed: int) -> dict:
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": {"weight": 0.3 * jax.random.normal(first, (CELLS, HIDDEN)), "bias": jnp.zeros(HIDDEN)},
        "values": {"weight": 0.3 * jax.random.normal(second, (HIDDEN, 2)), "bias": jnp.zeros(2)},
    }


@jax.jit
def values(weights: dict, obs: jax.Array) -> jax.Array:
    """The values of both actions, left and right: [..., 2]."""
    hidden = jax.nn.relu(obs @ weights["hidden"]["weight"] + weights["hidden"]["bias"])
    return hidden @ weights["values"]["weight"] + weights["values"]["bias"]


@jax.jit
def updated(weights: dict, obs, action, reward, next_obs, discount) -> dict:
    """The weights after one step of gradient descent on the squared temporal difference."""
    target = reward + discount * values(weights, next_obs).max(-1)

    def loss(weights: dict) -> jax.Array:
        chosen = jnp.take_along_axis(values(weights, obs), action[:, None], -1)[:, 0]
        return jnp.square(chosen - jax.lax.stop_gradient(target)).mean()

    return jax.tree.map(lambda old, slope: old - LEARNING_RATE * slope, weights, jax.grad(loss)(weights))


def act(context: mc.WorkerContext, replay: mc.ReplayBuffer, store: mc.ParameterStore, lane: int) -> None:
    """Walks the corridor; a reward waits at its right end."""
    random, one_hot = np.random.default_rng(lane), np.eye(CELLS, dtype=np.float32)
    weights = jax.tree.map(np.array, new_weights(0))  # writable copies, which `pull` fills
    subscriber, cell = store.subscriber(weights), 0
    with replay.writer(lane) as writer:
        while not context.stopping:
            if subscriber.pull():
                writer.policy_version = subscriber.version  # stored with each row from now on
            explore = random.random() < subscriber.extras.get("epsilon", 1.0)
            action = int(random.integers(2) if explore else values(weights, one_hot[cell]).argmax())
            after = min(max(cell + (1 if action else -1), 0), CELLS - 1)
            ended = after == CELLS - 1
            writer.add(one_hot[cell], action, reward=float(ended), terminated=ended)
            cell = 0 if ended else after


def main() -> None:
    weights = new_weights(0)
    with (
        mc.ReplayBuffer.create(SPEC, capacity=20_000, lanes=2) as replay,
        mc.ParameterStore.create(weights, extras={"epsilon": ()}) as store,
        mc.Workers(preload=["marlcore.replay"]) as workers,  # by default, workers start with torch
    ):
        for lane in range(2):
            workers.start(act, replay, store, lane)
        sampler, publisher = replay.sampler(batch_size=128, gamma=DISCOUNT, min_size=1_000), store.publisher(weights)
        for update in range(UPDATES):
            workers.check()
            batch = sampler.sample(timeout=60.0)
            weights = updated(weights, batch.obs, batch.action, batch.reward, batch.next_obs, batch.discount)
            publisher.publish(weights, epsilon=max(0.1, 1 - 2 * update / UPDATES))
        best = values(weights, np.eye(CELLS, dtype=np.float32)[:-1]).argmax(-1)
        print(f"{publisher.version} versions published; the best actions are {np.asarray(best).tolist()}")
        publisher.close()


if __name__ == "__main__":
    main()
