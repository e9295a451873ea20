"""The main job: DQN on CartPole, several collectors and one learner on one shared buffer."""
