"""What an ablation is made of: its definition (`sweep`), its members, what is missing, what it leaves. The flow is `flows.ablation`."""
