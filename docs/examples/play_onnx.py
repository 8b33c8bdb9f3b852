"""Plays an exported agent with onnxruntime, gymnasium and numpy alone: python play_onnx.py agent.onnx CartPole-v1."""

import json
import sys

import gymnasium as gym
import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(sys.argv[1])
contract = json.loads(session.get_modelmeta().custom_metadata_map["slm_lab"])
env = gym.make(sys.argv[2])
for episode in range(int(sys.argv[3]) if len(sys.argv) > 3 else 3):
    obs, _ = env.reset(seed=episode)
    total, is_over = 0.0, False
    while not is_over:
        batch = np.asarray(obs, contract["observation"]["dtype"])[None]
        action = session.run(["action"], {"obs": batch})[0][0]
        obs, reward, terminated, truncated, _ = env.step(action)
        total, is_over = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total!r}")
