"""What a pretraining run will cost, before it starts: pure Python on the params, except for what measures this machine."""
