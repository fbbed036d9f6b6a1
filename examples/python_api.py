"""The Python interface: train, predict, save, load, go on."""

from __future__ import annotations

import tempfile

import gymnasium

from stoker import PPO

model = PPO("MlpPolicy", "CartPole-v1", seed=1)
model.learn(30_000, callback=lambda progress: print(f"{progress.env_steps:>6,} steps") or True)

env = gymnasium.make("CartPole-v1")
obs, _ = env.reset(seed=0)
total, over = 0.0, False
while not over:
    action, _ = model.predict(obs, deterministic=True)
    obs, reward, terminated, truncated, _ = env.step(action)
    total, over = total + float(reward), terminated or truncated
print(f"reward of one episode: {total:.0f}")

with tempfile.TemporaryDirectory() as folder:
    model.save(f"{folder}/cartpole")
    PPO.load(f"{folder}/cartpole", env="CartPole-v1").learn(5_000).close()
model.close()
