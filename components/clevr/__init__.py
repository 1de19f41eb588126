"""How well linear heads count the objects of a CLEVR scene and tell the distance of the closest one."""
