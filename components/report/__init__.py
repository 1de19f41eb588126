"""Stage `report`: every evaluation's pretrained score beside the same encoder untrained."""
