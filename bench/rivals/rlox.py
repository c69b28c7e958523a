"""rlox's PPO, whose CartPole is in Rust."""

from rlox.algorithms.ppo import PPO
from rlox.callbacks import Callback

from ..peers.setting import Setting
from .side import Tell


def train(setting: Setting, tell: Tell, form: str) -> None:
    class Telling(Callback):  # type: ignore[misc]
        def on_step(self, step: int = 0, **_: object) -> bool:
            return tell(step / setting.updates_per_step, step)

    trainer = PPO(
        setting.env, setting.copies, callbacks=[Telling()], n_steps=setting.batch // setting.copies,
        batch_size=setting.minibatch, n_epochs=setting.epochs, learning_rate=setting.learning_rate, gamma=setting.gamma,
    )  # fmt: skip
    trainer.train(10**9)
