"""What a promotion is made of, in the order of `promotion`. The flow is `flows.promote`."""
