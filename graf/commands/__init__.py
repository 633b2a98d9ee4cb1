"""What train.py and eval.py do once their arguments are parsed. The programs import it then: PyTorch takes seconds to load."""
