"""Ways to cut an object out of a photograph: masks, plain backgrounds, GrabCut; `ways.py` chooses between them."""
