"""Stage `pretrain`: StoP on I-JEPA, in Ray Train, with its training loop in plain torch."""
