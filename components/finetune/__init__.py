"""How well the encoder classifies when all of it is trained on labels: the 1 % recipe of I-JEPA, or MAE's full finetuning.

Read `recipe` (what may be told), `classifier` (what trains), `rates` (each layer's learning rate), `augment` and `examples` (what it
sees), `loop` (how it trains), `resume`, `run`.
"""
