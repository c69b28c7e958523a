"""RLlib's APPO or PPO, with an environment runner for each actor, or with one runner within the learner's process."""

from contextlib import ExitStack

import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from ..peers.setting import Setting
from .side import Tell


def train(setting: Setting, tell: Tell, form: str) -> None:
    with ExitStack() as stack:
        where = {"num_cpus": 2 + setting.actors, "include_dashboard": False}
        if setting.nodes > 1:
            from ray_nodes import RayNodes

            where = {"address": stack.enter_context(RayNodes(setting.nodes, cpus=1)).address}
        ray.init(log_to_driver=False, logging_level="error", **where)
        trainer, goes_on = configured(form, setting).build_algo(), True
        while goes_on:
            result = trainer.train()
            of_learner = result.get("learners", {}).get("default_policy", {})
            trained = float(of_learner.get("num_module_steps_trained_lifetime", 0))
            sampled = float(result["env_runners"].get("num_env_steps_sampled_lifetime", 0))
            goes_on = tell(sampled, trained / setting.minibatch)
        trainer.stop()
        ray.shutdown()


def configured(algorithm: str, setting: Setting) -> APPOConfig | PPOConfig:
    network = DefaultModelConfig(fcnet_hiddens=[*setting.hidden], fcnet_activation="tanh", vf_share_layers=False)
    asynchronous = algorithm == "APPO"
    config = (
        (APPOConfig() if asynchronous else PPOConfig())
        .environment(setting.env)
        .env_runners(
            num_env_runners=setting.actors if asynchronous else 0,
            num_envs_per_env_runner=setting.copies,
            rollout_fragment_length=setting.batch // setting.copies if asynchronous else "auto",
        )
        .learners(num_learners=0)
        .rl_module(model_config=network)
        .training(train_batch_size_per_learner=setting.batch, lr=setting.learning_rate, gamma=setting.gamma)
        .reporting(min_time_s_per_iteration=0.5)
    )
    if asynchronous:  # one pass, as the others
        return config.training(circular_buffer_num_batches=1, circular_buffer_iterations_per_batch=setting.epochs)
    # A batch has a row more for each episode that it cuts, which would be a second minibatch
    one_step = setting.minibatch == setting.batch
    return config.training(num_epochs=setting.epochs, minibatch_size=None if one_step else setting.minibatch)
