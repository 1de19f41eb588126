"""How well a linear classifier and nearest neighbours do on the frozen encoder's features of a labelled dataset."""
