"""The revision loop as a pure state machine: what a submission costs, what the model is told, when a run is over."""
