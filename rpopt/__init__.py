"""Plans of Mixture-of-Experts RL training steps. Importing it loads NumPy only."""
