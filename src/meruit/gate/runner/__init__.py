"""The engines that drive agent runs: in this process, or on a queue."""
